"""Evaluations, retention sets, the best checkpoint and guards, from the engine's events to the job."""

from collections.abc import Callable

import pytest
from sqlalchemy import select

from grpo_engine.contract.events import Evaluated, RolloutsRecorded, Stopped, Verdict, Warned
from grpo_engine.contract.records import GroupRecord
from service.jobs.api.responses import read_jobs
from service.jobs.model.states import JobState
from service.jobs.results.weights import chosen_weights
from service.jobs.store import queue
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint, Metric, Rollout
from tests.conftest import on_sqlite
from tests.worker.attempt.test_recording import record, step
from tests.worker.jobs import insert_dataset, insert_job, method, read_job
from tests.worker.outcomes import expected_weights, messages, weights
from worker.attempt.attempt import Attempt
from worker.attempt.conclude import conclude
from worker.attempt.follow import Ending, StopRequest
from worker.attempt.lease import Lease
from worker.attempt.runner import claim, run_job
from worker.attempt.worker import Worker
from worker.launchers.gpu_reservation import Reservation

pytestmark = on_sqlite  # nothing here depends on the database

Submit = Callable[..., str]


def evaluated(
    sequence: int, number: int, reward: float, name: str = "validation", **more: object
) -> Evaluated:
    verdict = Verdict(text="a verdict", difference=reward, low=-0.2, high=-0.1, rows=9) if number else None
    given = {"sequence": sequence, "step": number, "name": name, "metrics": {"reward": reward}}
    return Evaluated.model_validate({**given, "verdict": verdict, **more})


def test_verdict_and_retention_sets_are_stored_with_the_evaluations(database: Database, job_id: str) -> None:
    events = [
        evaluated(1, 0, 0.5),
        evaluated(2, 0, 0.9, "general"),
        step(1, 3),
        evaluated(4, 1, 0.4),
        evaluated(5, 1, 0.7, "general"),
    ]
    record(database, job_id, events)
    found = read_job(database, job_id).evaluation
    verdict = {"text": "a verdict", "low": -0.2, "high": -0.1, "rows": 9}
    assert found["best"] == found["baseline"] == {"step": 0, "reward": 0.5}
    assert found["verdict"] == {**verdict, "difference": 0.4}
    assert found["retention"] == {
        "general": {
            "baseline": {"step": 0, "reward": 0.9},
            "last": {"step": 1, "reward": 0.7},
            "verdict": {**verdict, "difference": 0.7},
        }
    }
    with database.reading() as session:
        values = session.scalars(select(Metric)).one().values
    interval = {"eval/difference": 0.4, "eval/difference_low": -0.2, "eval/difference_high": -0.1}
    rewards = {"reward": 0.5, "eval/reward": 0.4, "eval/general/reward": 0.7}
    assert values == {**rewards, **interval, "eval/compared_rows": 9.0}


def test_evaluations_repeated_by_a_resumed_engine_change_nothing(database: Database, job_id: str) -> None:
    record(database, job_id, [evaluated(1, 1, 0.4), evaluated(2, 1, 0.7, "general")])
    before = (read_job(database, job_id).evaluation, len(messages(database, job_id)))
    record(database, job_id, [evaluated(3, 1, 0.9), evaluated(4, 1, 0.9, "general")])
    assert (read_job(database, job_id).evaluation, len(messages(database, job_id))) == before


def test_final_verdicts_are_stated_in_events(database: Database, job_id: str) -> None:
    record(
        database,
        job_id,
        [evaluated(1, 5, 0.4, is_final=True), evaluated(2, 5, 0.7, "general", is_final=True)],
    )
    assert messages(database, job_id, "warn") == [
        "Change of the held-out reward after 5 steps: a verdict (9 rows compared).",
        "Change of the reward of retention set general after 5 steps: a verdict (9 rows compared).",
    ]


def test_a_change_that_is_unknown_counts_no_rows(database: Database, job_id: str) -> None:
    verdict = Verdict(text="unknown, because only 1 row was scored", rows=1)
    record(database, job_id, [evaluated(1, 1, 0.4, verdict=verdict, is_final=True)])
    assert messages(database, job_id, "info")[-1:] == [
        "Change of the held-out reward after 1 step: unknown, because only 1 row was scored."
    ]


def test_a_warning_about_a_step_is_reported_once(database: Database, job_id: str) -> None:
    for sequence in (1, 2):
        record(database, job_id, [Warned(sequence=sequence, code="guard_kl", message="far", step=7)])
    assert messages(database, job_id, "warn") == ["far"]


def test_rollouts_of_a_retention_set_name_it(database: Database, job_id: str) -> None:
    group = GroupRecord(row=3, prompt="p", completions=(), has_signal=False)
    record(
        database,
        job_id,
        [
            RolloutsRecorded(sequence=1, step=0, split="retention", name="a", groups=(group,)),
            RolloutsRecorded(sequence=2, step=0, split="retention", name="b", first=1, groups=(group,)),
        ],
    )
    with database.reading() as session:
        rows = session.scalars(select(Rollout).order_by(Rollout.position)).all()
    assert [(row.split, row.position, row.data["set"]) for row in rows] == [
        ("retention", 0, "a"),
        ("retention", 1, "b"),
    ]


def test_a_job_that_a_guard_paused_can_be_resumed(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit({"*": {"guard_at": 7}})
    run_job(worker)
    job = read_job(database, job_id)
    assert (job.state, job.step, job.checkpoint_step, job.lease_owner) == ("paused", 7, 7, None)
    assert job.warnings == [{"code": "guard_kl", "message": "too far away"}]
    assert run_job(worker) is False
    with database.transaction() as session:
        queue.request(session, "acme", job_id, "resume")
    run_job(worker)
    job = read_job(database, job_id)
    assert (job.state, job.step, job.attempt, job.failures) == ("succeeded", 10, 2, 0)
    assert weights(database, storage, job_id) == expected_weights()


def test_a_cancel_takes_precedence_over_a_pause_by_a_guard(database: Database, job_id: str) -> None:
    with database.transaction() as session:
        queue.request(session, "acme", job_id, "cancel")
        queue.finish(session, job_id, 1, JobState.PAUSED)
    assert read_job(database, job_id).state == "cancelled"


@pytest.mark.parametrize("action", [None, "drain", "pause"])
def test_a_pause_by_a_guard_takes_precedence_over_drain(
    worker: Worker, database: Database, action: StopRequest | None
) -> None:
    job_id = insert_job(database)
    claimed = claim(worker, Reservation())
    assert claimed is not None
    job, claimed_at = claimed
    with Lease(database, worker.settings, job, claimed_at) as lease:
        conclude(
            Attempt(worker, job, lease), Ending(stop_request=action, outcome=Stopped(step=1, reason="guard"))
        )
    assert read_job(database, job_id).state == "paused"


def test_the_best_checkpoint_is_kept_and_reported(worker: Worker, database: Database, submit: Submit) -> None:
    shape = {"n_steps": 10, "checkpoint_interval": 2, "max_checkpoints": 1}
    job_id = submit({"*": {"peak_at": 4}}, hyperparameters=shape)
    run_job(worker)
    with database.reading() as session:
        rows = session.scalars(select(Checkpoint).order_by(Checkpoint.step)).all()
        job = read_job(database, job_id)
        answer = read_jobs(session, "acme", [job], worker.settings)[0]
        best = chosen_weights(session, "acme", job, "best")
        final = chosen_weights(session, "acme", job, "final")
    assert [row.step for row in rows] == [4, 10]
    assert answer.eval.best == {
        "step": 4,
        "reward": 0.14,
        "num_rows": 8.0,
        "rows": 8,
        "temperature": 0.0,
        "checkpoint": rows[0].id,
    }
    assert (best.step, final.step) == (4, 10)
    assert best.storage_key == rows[0].adapter_key


def test_retention_files_reach_the_engine(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    shape = method().model_dump(mode="json")
    file_id = insert_dataset(database, storage)
    shape["reinforcement"]["retention"] = [{"name": "general", "file": file_id}]
    job_id = submit(method=shape)
    run_job(worker)
    job = read_job(database, job_id)
    assert job.evaluation["retention"]["general"]["last"] == {"step": 10, "reward": 0.2, "num_rows": 8.0}
    subject = "Change of the reward of retention set general after 10 steps"
    message = f"{subject}: general moved by 0.1 (8 rows compared)."
    assert message in messages(database, job_id)


def test_a_deleted_retention_file_fails_the_job_for_good(
    worker: Worker, database: Database, submit: Submit
) -> None:
    shape = method().model_dump(mode="json")
    shape["reinforcement"]["retention"] = [{"name": "general", "file": "file-gone"}]
    job_id = submit(method=shape)
    run_job(worker)
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.failure["code"]) == ("failed", "dataset_invalid")
