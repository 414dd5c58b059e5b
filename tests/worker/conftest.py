"""A workplace with the fake engine: short leases, a tiny model in the catalogue, workers as processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import pytest

from grpo_engine.config.job import Runtime
from grpo_engine.process.parent_death import dies_with_this_process
from service.jobs.results.evidence import audit_job
from service.platform.db import Database
from service.platform.migrate import upgrade
from service.platform.storage import Storage, open_storage
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.forking import client as forking
from tests.support.servers import Postgres, wait_until
from tests.worker.jobs import claimed, insert_dataset, insert_job, read_job
from worker.attempt.worker import Worker

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[bytes] | forking.Forked


@pytest.fixture
def lease_seconds() -> float:
    """Longer than any pause of the machine: a test in which one is lost expires it (`expire_leases`)."""
    return 60.0


@pytest.fixture
def settings(database_url: str, tmp_path: Path, lease_seconds: float) -> Settings:
    """Everything fast but the lease's end. Without chat and warm engines: each one has tests of its own."""
    home = tmp_path / "home"
    model = home / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return settings_for(
        home,
        database_url,
        engine_python=forking.engine_python(),
        engine_module="tests.support.fake_engine",
        lease_seconds=lease_seconds,
        heartbeat_seconds=0.1,
        self_fence_seconds=0.8 * lease_seconds,
        sweep_seconds=0.4,
        poll_seconds=0.1,
        stop_grace_seconds=60,
        retry_backoff_seconds=0.05,
        chat_models=0,
        warm_engine=False,
    )


@pytest.fixture
def storage(settings: Settings) -> Storage:
    return open_storage(settings.storage_location)


@pytest.fixture
def worker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker inside the test; its engine is a real child process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    worker = Worker.open(settings, "test-worker")
    yield worker
    worker.close()


def environment_of(settings: Settings) -> dict[str, str]:
    """`GRPO_…` variables that say the same as the settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPO_")}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if value is not None:
            text = value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
            text = value.model_dump_json() if isinstance(value, Runtime) else text
            environment[f"GRPO_{name.upper()}"] = text
    return environment | {"PYTHONPATH": str(ROOT)}


def spawn(arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Process:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        stdout=output,
        stderr=output,
        preexec_fn=dies_with_this_process(signal.SIGKILL),
    )


@dataclass
class Processes:
    """Real processes, all ended with the test."""

    settings: Settings
    started: list[Process] = field(default_factory=list)

    @property
    def marks(self) -> Path:
        """Where fault points leave their names (`grpo_engine.process.fault_points`)."""
        folder = self.settings.home / "marks"
        folder.mkdir(exist_ok=True)
        return folder

    def start(
        self, *arguments: str, fault: str = "", environment: Mapping[str, str] = MappingProxyType({})
    ) -> Process:
        """`python arguments…` with the workplace's environment and more; fails as `GRPO_FAULT` says, once.

        Modules are forked from a process that has imported them, but not if a library is to be preloaded.
        """
        faults = {"GRPO_FAULT": fault, "GRPO_FAULT_MARKS": str(self.marks)} if fault else {}
        log = self.settings.home / f"process-{len(self.started)}.log"
        given = environment_of(self.settings) | faults | environment
        with log.open("wb") as output:
            if arguments[0] == "-m" and "LD_PRELOAD" not in given:
                self.started.append(forking.start(arguments[1:], given, output.fileno()))
            else:
                self.started.append(spawn(arguments, given, output))
        return self.started[-1]

    def start_worker(self, fault: str = "") -> Process:
        return self.start("-m", "worker", fault=fault)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.settings.home.glob("process-*.log"))

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def postgres_of_test(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database's URL: on the test's own server if it has one, otherwise on the shared one."""
    if "own_postgres" not in request.fixturenames:
        return str(request.getfixturevalue("postgres_url"))
    server: Postgres = request.getfixturevalue("own_postgres")
    upgrade(settings_for(tmp_path, server.url))
    return server.url


@pytest.fixture
def processes(settings: Settings) -> Iterator[Processes]:
    processes = Processes(settings)
    yield processes
    processes.close()


@pytest.fixture
def nothing_left(settings: Settings, processes: Processes) -> Iterator[None]:
    """Check that no engine survives its worker."""
    yield
    processes.close()
    wait_until(lambda: not engine_pids(settings), 120, "engines left behind")


@pytest.fixture
def job_id(database: Database) -> str:
    """A job claimed under fence 1."""
    return claimed(database).id


@pytest.fixture
def submit(database: Database, storage: Storage) -> Iterator[Callable[..., str]]:
    """Queue a job with a dataset and the fake engine's faults; at the test's end it is audited."""
    submitted: list[str] = []

    def submit(faults: dict[str, object] | None = None, **values: object) -> str:
        submitted.append(insert_job(database, insert_dataset(database, storage, faults), **values))
        return submitted[-1]

    yield submit
    found = {job_id: audit_job(database, storage, job_id) for job_id in submitted}
    assert not any(found.values()), found


@pytest.fixture
def wait_for(database: Database) -> Callable[..., None]:
    """Wait until a job has these values; a number is reached by what is beyond it, too."""

    def wait(job_id: str, seconds: float = 120, **expected: object) -> None:
        def reached() -> bool:
            job = read_job(database, job_id)
            return all(is_reached(getattr(job, name), value) for name, value in expected.items())

        try:
            wait_until(reached, seconds)
        except TimeoutError as error:
            now = vars(read_job(database, job_id))
            raise TimeoutError(f"{job_id}: {expected}, but {now}") from error

    return wait


def is_reached(found: Any, wanted: object) -> bool:
    """A count may be larger by now; every other value must be equal."""
    return bool(found >= wanted) if isinstance(wanted, int) else found == wanted


def engine_pids(settings: Settings) -> list[int]:
    """Live engines in a folder of this deployment's runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            works_here = (path / "cwd").readlink().is_relative_to(settings.runs_dir.resolve())
        except OSError:
            continue
        if works_here and settings.engine_module in command:
            found.append(int(path.name))
    return found
