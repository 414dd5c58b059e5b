"""Real worker processes that are killed or frozen: no engine survives, no work is recorded twice."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from service.platform.db import Database
from service.platform.storage import Storage
from service.settings import Settings
from tests.conftest import on_postgresql
from tests.support.servers import wait_until
from tests.worker.conftest import Process, Processes, engine_pids
from tests.worker.jobs import cancel, expire_leases, read_job
from tests.worker.outcomes import expected_weights, messages, metric_steps, run_until_idle, weights
from worker.attempt.worker import Worker

# kills are tried once, on the database of production
pytestmark = [on_postgresql, pytest.mark.usefixtures("nothing_left")]

Submit = Callable[..., str]
WaitFor = Callable[..., None]


@pytest.fixture
def lease_seconds(request: pytest.FixtureRequest) -> float:
    """Short only where a step takes longer."""
    return 8.0 if "draining" in request.node.name else 60.0


def slow_first_attempt(seconds: float = 0.3) -> dict[str, object]:
    return {"1": {"step_seconds": seconds}}


def freeze(worker: Process, database: Database) -> None:
    """Send SIGSTOP while the process holds no lock: SQLite has no server that would release it."""

    def is_frozen() -> bool:
        worker.send_signal(signal.SIGSTOP)
        if database.engine.dialect.name == "postgresql" or is_writable(database):
            return True
        worker.send_signal(signal.SIGCONT)
        return False

    wait_until(is_frozen, 120, "the worker is frozen outside of its transactions")


def is_writable(database: Database) -> bool:
    with closing(sqlite3.connect(str(database.engine.url.database), timeout=0.1)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


def test_another_worker_finishes_the_job_of_a_killed_one(
    database: Database,
    settings: Settings,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit({"1": {"hang_at": 6}})
    first = processes.start_worker()
    wait_for(job_id, checkpoint_step=5)
    first.kill()
    wait_until(lambda: not engine_pids(settings), 120, "the engine dies with its worker")
    expire_leases(database)
    processes.start_worker()
    wait_for(job_id, state="succeeded")
    job = read_job(database, job_id)
    assert (job.fence, job.attempt) == (3, 2)
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()


def test_a_terminated_worker_releases_its_job_after_a_checkpoint(
    database: Database,
    settings: Settings,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit(slow_first_attempt())
    first = processes.start_worker()
    wait_for(job_id, step=2)
    first.terminate()
    assert first.wait(timeout=60) == 0
    job = read_job(database, job_id)
    assert (job.state, job.failures, job.fence) == ("queued", 0, 1)
    assert job.checkpoint_step == job.step >= 2
    processes.start_worker()
    wait_for(job_id, state="succeeded")
    assert weights(database, storage, job_id) == expected_weights()


def test_a_draining_worker_renews_its_lease_while_the_engine_stops(
    database: Database, processes: Processes, submit: Submit, wait_for: WaitFor
) -> None:
    """The step takes longer than the lease: without renewals, another worker would claim the job."""
    job_id = submit({"1": {"step_seconds": 9}})
    first = processes.start_worker()
    wait_for(job_id, phase="training")
    processes.start_worker()
    first.terminate()
    assert first.wait(timeout=60) == 0
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).fence == 2
    assert "The worker was lost: its lease expired." not in messages(database, job_id)


def test_a_frozen_worker_changes_nothing_after_it_wakes(
    database: Database,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit({"1": {"step_seconds": 0.5}})
    zombie = processes.start_worker()
    wait_for(job_id, step=2)
    freeze(zombie, database)
    expire_leases(database)
    processes.start_worker()
    wait_for(job_id, state="succeeded")
    done = read_job(database, job_id)
    zombie.send_signal(signal.SIGCONT)
    wait_until(lambda: "job lost" in processes.logs(), 120, "the zombie notices")
    after = read_job(database, job_id)
    assert (after.state, after.fence, after.event_sequence) == ("succeeded", done.fence, done.event_sequence)
    assert weights(database, storage, job_id) == expected_weights()


def test_a_cancelled_job_of_a_dead_worker_is_cancelled(
    database: Database, processes: Processes, submit: Submit, wait_for: WaitFor
) -> None:
    job_id = submit({"*": {"hang_at": 1}})
    first = processes.start_worker()
    wait_for(job_id, phase="training")
    first.kill()
    cancel(database, job_id)
    expire_leases(database)
    processes.start_worker()
    wait_for(job_id, state="cancelled")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_killed_from_outside_is_restarted(
    database: Database,
    settings: Settings,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
    number: signal.Signals,
) -> None:
    job_id = submit(slow_first_attempt())
    processes.start_worker()
    wait_for(job_id, step=3)
    (engine,) = engine_pids(settings)
    os.kill(engine, number)
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 2
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()


def test_the_end_of_an_engine_that_printed_what_no_row_can_store_is_reported(
    worker: Worker, database: Database, submit: Submit
) -> None:
    """PostgreSQL refuses NUL, which a model may write and a grader may print."""
    job_id = submit({"*": {"prints": "no \x00 place\n", "die_at": 3}})
    run_until_idle(worker, database)
    failure = read_job(database, job_id).failure
    assert failure is not None
    assert "ended by SIGKILL" in failure["message"]
    assert failure["evidence"] == ["fake engine starts", "no \ufffd place"]
