"""A deployment for load tests: a durable PostgreSQL, uvicorn as a separate process, and stored jobs.

Boundary: everything before the first measured request. The database is the tests' server, except that it
syncs every commit to disk.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection, select, text

from examples.arithmetic import make_rows, write_jsonl
from service.platform.db import Database, connect
from service.platform.migrate import upgrade
from service.platform.tables.core import Job, JobEvent
from service.settings import Settings
from service.web.auth import create_key
from tests.ports import free_port
from tests.support.api_process import running_api
from tests.support.servers import Postgres

TENANT = "bench"
MODEL = "tiny"
PATH = "/v1/fine_tuning/jobs"
DATASET_ROWS = 1000
NO_LIMIT = 10**9


class DurablePostgres(Postgres):
    """A PostgreSQL that survives a power failure and vacuums as in docker/compose.yaml."""

    is_in_memory = False

    def command(self) -> list[str]:
        options = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
        options |= {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum_naptime": "10s"}
        return [*super().command(), *(word for item in options.items() for word in ("-c", "=".join(item)))]


@dataclass(frozen=True)
class Deployment:
    """Settings, database and key of the deployment."""

    settings: Settings
    database: Database
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@dataclass(frozen=True)
class Api:
    """The API's processes."""

    ports: tuple[int, ...]
    pids: tuple[int, ...]

    @property
    def url(self) -> str:
        """Base URL of the first process."""
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def one(self) -> "Api":
        """The first process alone."""
        return Api(self.ports[:1], self.pids[:1])

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all processes together."""
        return sum(_cpu_seconds(pid) for pid in self.pids)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of all processes together."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """A migrated database, a key and a model in the catalogue."""
    with DurablePostgres() as server:
        given = {"home": folder, "database_url": server.url, "max_queued_jobs": NO_LIMIT}
        settings = Settings.model_validate(given)
        upgrade(settings)
        _make_model(settings.models_dir / MODEL)
        database = connect(settings)
        with database.transaction() as session:
            key = create_key(session, TENANT)
        yield Deployment(settings, database, key)
        database.engine.dispose()


def _make_model(folder: Path) -> None:
    from examples.tiny_model import make_model  # loads torch, which the load's own processes do not need

    make_model(folder)
    gc.collect()
    gc.freeze()  # so that no collection walks through torch while requests are timed


@contextmanager
def serving(deployment: Deployment, num_processes: int = 1) -> Iterator[Api]:
    """Start API processes like `grpo serve`, each on its own port; they log to a file."""
    settings = deployment.settings
    given = {"HOME": str(settings.home), "DATABASE_URL": settings.sqlalchemy_url}
    given["MAX_QUEUED_JOBS"] = str(settings.max_queued_jobs)
    variables = {f"GRPO_{name}": value for name, value in given.items()}
    log = settings.home / "api.log"
    with ExitStack() as stack:
        ports = tuple(free_port() for _ in range(num_processes))
        started = [
            stack.enter_context(running_api(port, os.environ | variables, log, within=["env"]))
            for port in ports
        ]
        yield Api(ports, tuple(process.pid for process in started))


def upload_dataset(deployment: Deployment, api: Api) -> str:
    """Upload a file of a thousand sums; returns its id."""
    rows, _ = make_rows(DATASET_ROWS, 1, seed=0)
    path = deployment.settings.home / "train.jsonl"
    write_jsonl(path, rows)
    with path.open("rb") as file:
        answer = httpx.post(
            f"{api.url}/v1/files",
            headers=deployment.headers,
            files={"file": file},
            data={"purpose": "fine-tune"},
        )
    return str(answer.raise_for_status().json()["id"])


def job_request(training_file: str, seed: int, max_tokens: int = 16) -> dict[str, Any]:
    """A typical job. Each seed gives a different job; with another limit the service reads all rows again."""
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    hyperparameters = {"group_size": 8, "n_steps": 100, "max_completion_tokens": max_tokens}
    method = {"grader": grader, "hyperparameters": hyperparameters}
    return {
        "model": MODEL,
        "training_file": training_file,
        "seed": seed,
        "metadata": {"sweep": "load", "run": str(seed)},
        "method": {"type": "reinforcement", "reinforcement": method},
    }


def store_jobs(deployment: Deployment, api: Api, training_file: str, num_jobs: int) -> list[str]:
    """Insert copies of a posted job and its history as queued jobs of one tenant; returns their ids."""
    answer = httpx.post(
        api.url + PATH, headers=deployment.headers, json=job_request(training_file, 0), timeout=30
    )
    first = str(answer.raise_for_status().json()["id"])
    with deployment.database.engine.begin() as connection:
        _copy_job(connection, first, num_jobs - 1)
    settle(deployment)
    with deployment.database.reading() as session:
        return list(session.scalars(select(Job.id).order_by(Job.created_at, Job.id)))


def settle(deployment: Deployment) -> None:
    """Run CHECKPOINT and ANALYZE now, so that the database does not do so during the next measurement."""
    # VACUUM refuses to run in a transaction
    engine = deployment.database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for duty in ("VACUUM ANALYZE", "CHECKPOINT"):
            connection.execute(text(duty))


def _copy_job(connection: Connection, job_id: str, num_copies: int) -> None:
    own = {"id": "'ftjob-' || lpad(number::text, 24, '0')", "created_at": "created_at + number * 1e-6"}
    columns = [column.name for column in Job.__table__.columns]
    values = ", ".join(own.get(name, name) for name in columns)
    connection.execute(
        text(
            f"INSERT INTO jobs ({', '.join(columns)}) SELECT {values} "
            "FROM jobs, generate_series(1, :num) AS number WHERE id = :id"
        ),
        {"num": num_copies, "id": job_id},
    )
    shared = ", ".join(column.name for column in JobEvent.__table__.columns if column.name != "job_id")
    connection.execute(
        text(
            f"INSERT INTO job_events (job_id, {shared}) SELECT copies.id, {shared} "
            "FROM job_events CROSS JOIN (SELECT id FROM jobs WHERE id <> :id) AS copies WHERE job_id = :id"
        ),
        {"id": job_id},
    )
