"""A job with several ranks on one machine runs on a private Ray cluster, which ends with its attempt."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.jobs.progress import logs
from service.jobs.results.evidence import audit_job
from service.jobs.store import history
from service.platform.db import Database
from service.platform.storage import Storage
from tests.conftest import on_sqlite
from tests.support.servers import wait_until
from tests.support.waiting import descendants, is_alive
from tests.worker.conftest import Processes, engine_pids
from tests.worker.jobs import insert_dataset, insert_job, read_job
from tests.worker.outcomes import expected_weights, messages, metric_steps, run_until_idle, weights
from worker.attempt import runner
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.cluster import place
from worker.cluster.place import PREFIX
from worker.launchers.gpu_reservation import HostGpus
from worker.launchers.run_directory import LOCK, run_directory

pytestmark = on_sqlite  # one of the two: Ray takes long to start

Submit = Callable[..., str]
WaitFor = Callable[..., None]


@pytest.fixture
def two_gpus(worker: Worker) -> Worker:
    """The worker with two declared GPUs."""
    settings = worker.settings.model_copy(update={"gpus": 2})
    return replace(worker, settings=settings, gpus=HostGpus.of(settings))


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a path that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.slow
def test_two_ranks_train_and_leave_nothing(
    two_gpus: Worker, submit: Submit, database: Database, storage: Storage, temporary: Path
) -> None:
    job_id = submit({"*": {"prints": "from both\n"}}, required_gpus=2)
    assert run_job(two_gpus)
    job = read_job(database, job_id)
    assert (job.state, job.attempt) == ("succeeded", 1), messages(database, job_id)
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()
    with database.reading() as session:
        log = logs.lines_after(session, job_id, 0, 1000)
    for rank in (0, 1):
        assert [line.text for line in log if line.rank == rank] == ["fake engine starts", "from both"]
    assert not engine_pids(two_gpus.settings)
    assert not list(temporary.iterdir())


FROZEN = (
    ("ray::Rank", "prepare", place.ANSWER_SECONDS),
    ("worker.cluster.driver", "prepare", 2.0),
    ("worker.cluster.driver", "await_place", 2.0),
)
"""Of each attempt: a process of its cluster, the step of the runner before which it is frozen, and how long
the worker waits for an answer during that step."""


@pytest.mark.slow
def test_a_job_continues_whenever_a_process_of_its_cluster_stops_answering_before_the_engines_start(
    two_gpus: Worker, database: Database, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a rank whose host is frozen, or a driver that waits for Ray forever."""
    frozen: list[int] = []

    def freezing(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def freeze(*arguments: Any) -> Any:
            if len(frozen) == len(FROZEN) or FROZEN[len(frozen)][1] != name:
                return step(*arguments)
            stopped, _, patience = FROZEN[len(frozen)]
            found = wait_until(lambda: descendants(os.getpid(), stopped.encode()), what="the process runs")
            frozen.append(max(found))
            os.kill(frozen[-1], signal.SIGSTOP)
            with pytest.MonkeyPatch.context() as in_this_attempt:
                in_this_attempt.setattr(place, "ANSWER_SECONDS", patience)
                return step(*arguments)

        return freeze

    for name in ("prepare", "await_place"):
        monkeypatch.setattr(runner, name, freezing(name, getattr(runner, name)))
    limit = len(FROZEN) + 1
    settings = two_gpus.settings.model_copy(update={"max_attempts_without_checkpoint": limit})
    worker = replace(two_gpus, settings=settings)
    job_id = insert_job(database, insert_dataset(database, storage), required_gpus=2)
    run_until_idle(worker, database)
    assert_continued(worker, database, job_id, frozen)
    assert sum("lost" in message for message in messages(database, job_id)) == len(FROZEN)
    assert audit_job(database, storage, job_id, max_failures=limit) == []


@pytest.mark.slow
def test_a_job_continues_when_a_rank_never_starts(
    two_gpus: Worker, submit: Submit, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "DRIVER", "tests.worker.launchers.impatient_driver")
    frozen: list[int] = []

    def freeze_first() -> None:
        found = wait_until(lambda: descendants(os.getpid(), b"ray::IDLE"), what="a process for a rank")
        frozen.append(found[0])
        os.kill(frozen[0], signal.SIGSTOP)

    freezing = threading.Thread(target=freeze_first)
    freezing.start()
    job_id = submit(required_gpus=2)
    run_until_idle(two_gpus, database)
    freezing.join()
    assert_continued(two_gpus, database, job_id, frozen)
    assert "A rank did not start within 30 s." in messages(database, job_id)


def assert_continued(worker: Worker, database: Database, job_id: str, frozen: list[int]) -> None:
    """The attempt after those with a frozen process has succeeded, and nothing is left of these."""
    job = read_job(database, job_id)
    assert (job.state, job.attempt) == ("succeeded", len(frozen) + 1), messages(database, job_id)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in frozen))
    assert not engine_pids(worker.settings)


@pytest.mark.slow
def test_no_process_of_the_cluster_outlives_a_killed_worker(
    processes: Processes, database: Database, storage: Storage, wait_for: WaitFor, temporary: Path
) -> None:
    processes.settings = processes.settings.model_copy(update={"gpus": 2})
    job_id = insert_job(database, insert_dataset(database, storage, {"*": {"hang_at": 7}}), required_gpus=2)
    worker = processes.start("-P", "-m", "worker", environment={"TMPDIR": str(temporary)})
    wait_for(job_id, checkpoint_step=5)
    started = descendants(worker.pid, b"")
    assert len(descendants(worker.pid, b"Agent")) == 2
    worker.kill()
    # alone, Ray's agents end after a minute
    wait_until(lambda: not any(map(is_alive, started)), 40, "its processes have ended")


@pytest.mark.slow
def test_the_job_shows_the_log_of_the_rank_that_ended_first(
    two_gpus: Worker, submit: Submit, database: Database
) -> None:
    consequence = {"die_at": 4, "step_seconds": 1.0, "prints": "a consequence\n"}
    cause = {"die_at": 1, "prints": "the cause\n"}
    job_id = submit({"rank-0": consequence, "rank-1": cause}, required_gpus=2)
    assert run_job(two_gpus)
    with database.reading() as session:
        failure = history.newest_failure(session, job_id)
    assert failure is not None
    assert failure.data["evidence"] == ["fake engine starts", "the cause"]


@pytest.mark.slow
def test_a_cluster_that_never_starts_fails_the_job_and_removes_the_folders_of_killed_workers(
    two_gpus: Worker, submit: Submit, database: Database, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    too_long = temporary / ("long" * 20)
    monkeypatch.setattr(tempfile, "tempdir", str(too_long))
    living, killed = (too_long / f"{PREFIX}{name}" / "0" for name in ("living", "killed"))
    killed.mkdir(parents=True)
    (killed / LOCK).touch()
    job_id = submit(required_gpus=2)
    with run_directory(living):
        wait_until(lambda: bool(run_job(two_gpus)) and read_job(database, job_id).state == "failed", 120)
        assert list(too_long.iterdir()) == [living.parent]
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.failure["code"], job.attempt) == (
        "poisoned",
        two_gpus.settings.max_attempts_without_checkpoint,
    )
    assert any("AF_UNIX path length" in message for message in messages(database, job_id))
