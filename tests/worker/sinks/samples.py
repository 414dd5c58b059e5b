"""Jobs with stored metrics and sinks, and processes of sinks like those of the keeper."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from service.jobs.model.states import JobState
from service.jobs.progress.metrics import add_metrics
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.sinks import JobSink, sinks_of
from service.settings import Settings
from service.sinks import outbox
from tests.worker.jobs import insert_job

ROOT = Path(__file__).parents[3]
WANDB = {"type": "wandb", "wandb": {"project": "sums", "name": "a run", "tags": ["t"]}}
TENSORBOARD = {"type": "tensorboard"}
MLFLOW = {"type": "mlflow", "mlflow": {"experiment": "sums"}}
BASELINE = {"baseline": {"step": 0, "reward": 0.25}}


def add_job(database: Database, *integrations: dict[str, Any], steps: int = 0, **values: Any) -> str:
    """Add a running job with a baseline evaluation and `steps` steps. Returns its id."""
    given = {"state": JobState.RUNNING.value, "evaluation": BASELINE, "integrations": list(integrations)}
    job_id = insert_job(database, **(given | values))
    with database.transaction() as session:
        session.add_all(sinks_of(session.get_one(Job, job_id)))
    make_steps(database, job_id, 1, steps)
    return job_id


def reward(step: int) -> float:
    return step / 128  # exact in 32 bits


def make_steps(database: Database, job_id: str, first: int, last: int) -> None:
    """Store the metrics of steps; every fifth step is evaluated."""
    rows: list[tuple[int, Mapping[str, float]]] = []
    for step in range(first, last + 1):
        rows.append((step, {"reward": reward(step), "rewards/a.b/mean": 0.5}))
        rows += [(step, {"eval/reward": 2 * reward(step)})] if step % 5 == 0 else []
    with database.transaction() as session:
        add_metrics(session, job_id, rows)
        session.execute(update(Job).where(Job.id == job_id).values(step=last))


def end(database: Database, job_id: str, state: JobState = JobState.SUCCEEDED) -> None:
    with database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(state=state.value))


def claim(database: Database, pool: str = "default") -> outbox.Claim | None:
    with database.transaction() as session:
        return outbox.claim_due(session, pool)


def rows_of(database: Database, job_id: str) -> dict[str, JobSink]:
    """The job's rows by sink."""
    with database.reading() as session:
        return {row.type: row for row in session.scalars(select(JobSink).where(JobSink.job_id == job_id))}


def row_of(database: Database, job_id: str) -> JobSink:
    """The row of a job with one sink."""
    (row,) = rows_of(database, job_id).values()
    return row


def warnings_of(database: Database, job_id: str) -> list[dict[str, str]]:
    with database.reading() as session:
        return session.get_one(Job, job_id).warnings


def make_due(database: Database, job_id: str) -> None:
    with database.transaction() as session:
        session.execute(update(JobSink).where(JobSink.job_id == job_id).values(due_at=0.0))


def environment(settings: Settings, *packages: Path, **more: str) -> dict[str, str]:
    """Variables for `worker.sinks`; folders of `packages` take precedence over installed packages."""
    path = os.pathsep.join([*(str(folder) for folder in packages), str(ROOT)])
    given = {"GRPO_HOME": str(settings.home), "PYTHONPATH": path, "WANDB_MODE": "offline"}
    if settings.database_url:
        given["GRPO_DATABASE_URL"] = settings.database_url.get_secret_value()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    return {**kept, **given, **more}


def start(found: outbox.Claim, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "worker.sinks", found.job_id, found.type, str(found.number)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str]) -> str:
    """Wait for a successful exit. Returns the log."""
    with process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    return log
