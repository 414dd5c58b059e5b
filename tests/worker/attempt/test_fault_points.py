"""SIGKILL at each fault point of engine, worker and sweeper: the job ends like an undisturbed one."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from grpo_engine.process.fault_points import POINTS, Fault, parse_faults
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Job
from tests.conftest import on_postgresql
from tests.support.servers import wait_until
from tests.worker.conftest import ROOT, Processes, engine_pids
from tests.worker.jobs import cancel, read_job
from tests.worker.outcomes import (
    expected_weights,
    in_background,
    make_due,
    metric_steps,
    run_until_idle,
    weights,
)
from worker.attempt.worker import Worker
from worker.sweeper import sweep_once

# kills are tried once, on the database of production
pytestmark = [on_postgresql, pytest.mark.usefixtures("nothing_left")]

Submit = Callable[..., str]
WaitFor = Callable[..., None]

OF_ENGINE = ["step.trained@7", "checkpoint.weights_written", "checkpoint.sealed", "checkpoint.renamed"]
OF_WORKER = [
    "job.claimed",
    "job.prepared",
    "engine.spawned",
    "events.recorded@3",
    "lease.renewing",
    "lease.renewed",
    "checkpoint.uploaded",
    "checkpoint.published",
    "results.uploaded",
    "job.finished",
]


def fault(point: str, action: str) -> str:
    """The value of `GRPO_FAULT` for `name@2` and an action."""
    name, at, nth = point.partition("@")
    return f"{name}:{action}{at}{nth}"


def has_failed(processes: Processes, point: str) -> bool:
    return (processes.marks / point.partition("@")[0]).exists()


def forget_lease(database: Database, worker: Worker) -> None:
    """Expire the dead worker's lease, sweep, and skip the pause before the retry."""
    with database.transaction() as session:
        session.execute(update(Job).where(Job.lease_expires_at.is_not(None)).values(lease_expires_at=1))
    sweep_once(database, worker.wakeups, worker.settings)
    make_due(database)


def is_like_an_undisturbed_one(database: Database, storage: Storage, job_id: str) -> bool:
    assert read_job(database, job_id).state == "succeeded"
    assert metric_steps(database, job_id) == list(range(1, 11))
    return weights(database, storage, job_id) == expected_weights()


@pytest.mark.parametrize("point", OF_ENGINE)
def test_an_engine_killed_anywhere_costs_an_attempt_and_nothing_else(
    worker: Worker,
    database: Database,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    monkeypatch.setenv("GRPO_FAULT", fault(point, "kill"))
    monkeypatch.setenv("GRPO_FAULT_MARKS", str(processes.marks))
    job_id = submit()
    run_until_idle(worker, database)
    assert has_failed(processes, point)
    assert is_like_an_undisturbed_one(database, storage, job_id)
    assert read_job(database, job_id).attempt == 2


@pytest.mark.parametrize("point", OF_WORKER)
def test_a_worker_killed_anywhere_costs_an_attempt_and_nothing_else(
    worker: Worker,
    database: Database,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    point: str,
) -> None:
    job_id = submit({"1": {"step_seconds": 0.05}})
    dead = processes.start("-m", "worker", "--once", fault=fault(point, "kill"))
    assert dead.wait(timeout=30) == -signal.SIGKILL
    assert has_failed(processes, point)
    forget_lease(database, worker)
    run_until_idle(worker, database)
    assert is_like_an_undisturbed_one(database, storage, job_id)
    assert read_job(database, job_id).attempt == (1 if point == "job.finished" else 2)


@pytest.mark.parametrize(
    "point", ["job.prepared", "events.recorded@2", "checkpoint.uploaded", "job.released"]
)
def test_a_bug_in_the_worker_costs_an_attempt_and_nothing_else(
    database: Database, storage: Storage, processes: Processes, submit: Submit, wait_for: WaitFor, point: str
) -> None:
    job_id = submit({"1": {"die_at": 7}} if point == "job.released" else {})
    processes.start_worker(fault(point, "raise"))
    wait_for(job_id, state="succeeded")
    assert has_failed(processes, point)
    assert is_like_an_undisturbed_one(database, storage, job_id)


@pytest.mark.parametrize("point", ["job.claimed", "job.prepared", "engine.spawned", "checkpoint.uploaded"])
def test_a_cancel_takes_effect_in_every_phase(
    database: Database, processes: Processes, submit: Submit, wait_for: WaitFor, point: str
) -> None:
    job_id = submit({"*": {"step_seconds": 0.05}}, hyperparameters={"n_steps": 1000})
    processes.start_worker(fault(point, "sleep=0.5"))
    wait_until(lambda: has_failed(processes, point), 120, "the worker is there")
    cancel(database, job_id)
    wait_for(job_id, state="cancelled")
    assert read_job(database, job_id).attempt == 1


@pytest.mark.parametrize("point", ["sweep.committed", "sweep.wakeups_sent"])
def test_a_sweeper_killed_during_a_sweep_loses_no_job(
    worker: Worker,
    database: Database,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
    point: str,
) -> None:
    job_id = submit({"1": {"step_seconds": 0.5}})
    lost = processes.start_worker()
    wait_for(job_id, phase="training")
    lost.kill()
    with database.transaction() as session:
        session.execute(update(Job).values(lease_expires_at=1))
    assert processes.start("-m", "worker.sweeper", fault=fault(point, "kill")).wait(30) == -signal.SIGKILL
    wait_for(job_id, state="queued")
    forget_lease(database, worker)
    run_until_idle(worker, database)
    assert is_like_an_undisturbed_one(database, storage, job_id)


def test_a_worker_without_its_lease_thread_stops_its_engine_in_time(
    worker: Worker, database: Database, submit: Submit, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-fence does not depend on the renewal thread, which has died."""
    monkeypatch.setattr("worker.attempt.lease.Lease._renew_until_done", lambda _lease: None)
    short = worker.settings.model_copy(update={"lease_seconds": 2.0, "self_fence_seconds": 1.0})
    object.__setattr__(worker, "settings", short)
    job_id = submit({"*": {"step_seconds": 0.05}}, hyperparameters={"n_steps": 1000})
    in_background(worker).join(timeout=60)
    assert engine_pids(worker.settings) == []
    assert read_job(database, job_id).state == "running"
    assert read_job(database, job_id).step < 1000


def test_fault_specifications_are_parsed() -> None:
    found = parse_faults("job.claimed:kill@2, storage.put:raise=ENOSPC,stream.read:sleep=0.5")
    assert found == {
        "job.claimed": Fault("kill", None, 2),
        "storage.put": Fault("raise", "ENOSPC", None),
        "stream.read": Fault("sleep", "0.5", None),
    }


@pytest.mark.parametrize(
    "text", ["nowhere:kill", "job.claimed:explode", "job.claimed", "storage.put:raise=OOPS"]
)
def test_an_invalid_fault_ends_the_process_with_an_explanation(text: str) -> None:
    with pytest.raises(ValueError, match="GRPO_FAULT"):
        parse_faults(text)


def test_every_fault_point_occurs_once_in_the_code() -> None:
    files = [path for name in ("grpo_engine", "service", "worker") for path in (ROOT / name).rglob("*.py")]
    code = "".join(path.read_text() for path in files)
    assert {point: code.count(f'fault_point("{point}")') for point in POINTS} == dict.fromkeys(POINTS, 1)


def test_every_fault_point_is_documented() -> None:
    page = (ROOT / "docs" / "operate" / "reliability.md").read_text()
    assert [point for point in POINTS if f"`{point}`" not in page] == []


def test_a_fault_point_does_nothing_by_default() -> None:
    program = (
        "from grpo_engine.process.fault_points import fault_point; "
        "fault_point('job.claimed'); print(fault_point.faults)"
    )
    done = subprocess.run(
        ["python3", "-c", program], capture_output=True, text=True, cwd=Path(ROOT), check=True
    )
    assert done.stdout == "{}\n"
