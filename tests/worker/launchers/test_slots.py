"""One worker runs several jobs at the same time, each with a lease, an engine and GPUs of its own."""

import signal
from collections.abc import Callable

from service.jobs.store import queue
from service.platform.db import Database
from service.platform.storage import Storage
from service.settings import Settings
from tests.conftest import on_postgresql
from tests.support.servers import wait_until
from tests.worker.conftest import Processes, engine_pids
from tests.worker.jobs import expire_leases, read_job
from tests.worker.outcomes import expected_weights, weights

Submit = Callable[..., str]
WaitFor = Callable[..., None]
SLOW = {"*": {"step_seconds": 0.2}}


def with_slots(processes: Processes, gpus: int, slots: int | None = None) -> None:
    """The processes' settings from now on."""
    stated = {"gpus": gpus, "slots": slots or max(1, gpus)}
    processes.settings = processes.settings.model_copy(update=stated)


def states(database: Database, jobs: list[str]) -> list[str]:
    return [read_job(database, job_id).state for job_id in jobs]


def test_two_slots_run_two_jobs_at_the_same_time_and_a_third_after_one_of_them(
    processes: Processes, submit: Submit, wait_for: WaitFor, database: Database, storage: Storage
) -> None:
    with_slots(processes, gpus=0, slots=2)
    jobs = [submit(SLOW) for _ in range(3)]
    processes.start_worker()
    wait_until(lambda: len(engine_pids(processes.settings)) == 2, 120)
    assert sorted(states(database, jobs)) == ["queued", "running", "running"]
    for job_id in jobs:
        wait_for(job_id, state="succeeded", attempt=1)
        assert weights(database, storage, job_id) == expected_weights()


@on_postgresql
def test_a_job_waits_for_all_of_its_gpus(
    processes: Processes, submit: Submit, wait_for: WaitFor, database: Database
) -> None:
    with_slots(processes, gpus=2)
    first = submit({"*": {"step_seconds": 1}}, required_gpus=1)
    processes.start_worker()
    wait_for(first, state="running")
    both = submit(required_gpus=2)
    small = submit()
    wait_for(small, state="succeeded")
    assert states(database, [first, both]) == ["running", "queued"]
    with database.transaction() as session:
        queue.request(session, "acme", first, "cancel")
    wait_for(both, state="succeeded", attempt=1)
    assert states(database, [first]) == ["cancelled"]


@on_postgresql
def test_sigterm_releases_the_jobs_of_all_slots_after_a_checkpoint(
    processes: Processes, submit: Submit, wait_for: WaitFor, database: Database
) -> None:
    with_slots(processes, gpus=0, slots=2)
    jobs = [submit({"*": {"step_seconds": 0.5}}) for _ in range(2)]
    worker = processes.start_worker()
    for job_id in jobs:
        wait_for(job_id, step=2)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert states(database, jobs) == ["queued", "queued"]
    assert all(read_job(database, job_id).checkpoint_step >= 2 for job_id in jobs)
    assert not engine_pids(processes.settings)
    processes.start_worker()
    for job_id in jobs:
        wait_for(job_id, state="succeeded", attempt=2)


@on_postgresql
def test_the_jobs_of_a_killed_worker_are_taken_over_with_their_gpus(
    processes: Processes, submit: Submit, wait_for: WaitFor, settings: Settings, database: Database
) -> None:
    with_slots(processes, gpus=2)
    jobs = [submit(SLOW) for _ in range(2)]
    worker = processes.start_worker()
    for job_id in jobs:
        wait_for(job_id, step=2)
    worker.kill()
    worker.wait()
    wait_until(lambda: not engine_pids(settings))
    expire_leases(database)
    processes.start_worker()
    for job_id in jobs:
        wait_for(job_id, state="succeeded", attempt=2)
