"""After an engine dies, hangs or sends garbage, the job resumes from a checkpoint or fails with a reason."""

from collections.abc import Callable

from sqlalchemy import select, update

from service.jobs.store import queue
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint, Job
from tests.conftest import on_sqlite
from tests.worker.conftest import engine_pids
from tests.worker.jobs import cancel, read_job
from tests.worker.outcomes import (
    damage,
    expected_weights,
    in_background,
    make_due,
    messages,
    metric_steps,
    run_until_idle,
    weights,
)
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # nothing here depends on the database

Submit = Callable[..., str]


def test_a_killed_engine_resumes_with_an_identical_result(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit({"1": {"die_at": 7}, "2": {"die_at": 9}, "3": {"fails_at_exit": True}})
    run_until_idle(worker, database)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 3, 0)
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()
    found = messages(database, job_id)
    assert sum("ended by SIGKILL. Usually the machine" in text for text in found) == 2
    assert "Training resumed from step 5 on cpu (float32, sampler fake)." in found


def test_an_engine_that_dies_before_any_checkpoint_poisons_its_job(
    worker: Worker, database: Database, submit: Submit
) -> None:
    job_id = submit({"*": {"die_at": 3}})
    run_until_idle(worker, database)
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.attempt, job.failure["code"]) == ("failed", 3, "poisoned")
    assert job.failure["evidence"] == ["fake engine starts"]


def test_a_deterministic_failure_is_not_retried(worker: Worker, database: Database, submit: Submit) -> None:
    job_id = submit({"*": {"fail_at": 7}})
    run_until_idle(worker, database)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.checkpoint_step) == ("failed", 1, 5)
    assert job.failure == {
        "code": "non_finite",
        "message": "the loss is NaN",
        "hint": "lower it",
        "evidence": ["x"],
    }
    assert messages(database, job_id, "error") == ["the loss is NaN"]


def test_garbage_in_the_event_file_is_dropped_and_counted(
    worker: Worker, database: Database, submit: Submit
) -> None:
    job_id = submit({"*": {"garbage_at": 4}})
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert metric_steps(database, job_id) == list(range(1, 11))
    found = messages(database, job_id, "warn")
    assert found == ["Dropped 3 unreadable lines of the engine's events."]


def test_a_paused_job_continues_where_it_stopped(
    worker: Worker, database: Database, storage: Storage, submit: Submit, wait_for: Callable[..., None]
) -> None:
    job_id = submit({"1": {"step_seconds": 0.3}})
    thread = in_background(worker)
    wait_for(job_id, step=2)
    with database.transaction() as session:
        queue.request(session, "acme", job_id, "pause")
    thread.join()
    assert read_job(database, job_id).state == "paused"
    with database.transaction() as session:
        queue.request(session, "acme", job_id, "resume")
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace_period(
    worker: Worker, database: Database, submit: Submit, wait_for: Callable[..., None]
) -> None:
    object.__setattr__(worker, "settings", worker.settings.model_copy(update={"stop_grace_seconds": 0.3}))
    job_id = submit({"*": {"ignore_sigterm": True, "step_seconds": 0.05}}, hyperparameters={"n_steps": 1000})
    thread = in_background(worker)
    wait_for(job_id, phase="training")
    cancel(database, job_id)
    thread.join()
    assert read_job(database, job_id).state == "cancelled"
    assert engine_pids(worker.settings) == []


def test_a_stalled_engine_is_killed(worker: Worker, database: Database, submit: Submit) -> None:
    object.__setattr__(worker, "settings", worker.settings.model_copy(update={"stall_seconds": 3}))
    job_id = submit({"1": {"hang_at": 6}})
    run_until_idle(worker, database)
    assert read_job(database, job_id).state == "succeeded"
    assert "The engine reported nothing for too long and was killed." in messages(database, job_id)
    assert metric_steps(database, job_id) == list(range(1, 11))


def test_an_engine_that_repeats_recorded_steps_is_not_stalled(
    worker: Worker, database: Database, submit: Submit
) -> None:
    object.__setattr__(worker, "settings", worker.settings.model_copy(update={"stall_seconds": 5}))
    faults: dict[str, object] = {"1": {"die_at": 9}, "2": {"step_seconds": 0.8}}
    job_id = submit(faults, hyperparameters={"n_steps": 10, "checkpoint_interval": 10})
    run_until_idle(worker, database)
    job = read_job(database, job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert metric_steps(database, job_id) == list(range(1, 11))


def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit({"1": {"die_at": 7}}, hyperparameters={"n_steps": 10, "checkpoint_interval": 2})
    run_job(worker)
    with database.reading() as session:
        rows = session.scalars(select(Checkpoint).order_by(Checkpoint.step)).all()
    assert [row.step for row in rows] == [2, 4, 6]
    assert rows[-1].state_key is not None
    damage(storage, rows[-1].state_key)
    make_due(database)
    run_job(worker)
    found = messages(database, job_id)
    assert (
        "The checkpoint of step 6 is skipped: its archive is damaged: the stored object has the wrong sha256"
        in found
    )
    assert "Training resumed from step 4 on cpu (float32, sampler fake)." in found
    assert read_job(database, job_id).state == "succeeded"
    assert weights(database, storage, job_id) == expected_weights()
    assert metric_steps(database, job_id) == list(range(1, 11))


def test_training_restarts_without_a_usable_checkpoint(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit({"1": {"die_at": 7}})
    run_job(worker)
    storage.delete(f"jobs/{job_id}/checkpoints/5-1/state.tar")
    make_due(database)
    run_job(worker)
    assert "No usable checkpoint is left: training restarts from the first step." in messages(
        database, job_id
    )
    assert weights(database, storage, job_id) == expected_weights()
    assert metric_steps(database, job_id) == list(range(1, 11))


def test_a_worker_that_lost_its_lease_kills_its_engine_and_writes_nothing(
    worker: Worker, database: Database, submit: Submit, wait_for: Callable[..., None]
) -> None:
    job_id = submit({"*": {"step_seconds": 0.1}}, hyperparameters={"n_steps": 1000})
    thread = in_background(worker)
    wait_for(job_id, phase="training")
    with database.transaction() as session:
        session.execute(update(Job).values(fence=50, lease_owner="other", lease_expires_at=db_now() + 60))
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert engine_pids(worker.settings) == []
    job = read_job(database, job_id)
    assert (job.state, job.fence, job.lease_owner) == ("running", 50, "other")
