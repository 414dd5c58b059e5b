"""Due sinks, claims and failures, on both databases."""

import threading
from typing import cast

import pytest
from sqlalchemy import select

from service.jobs.model.states import JobState
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.core import JobEvent
from service.platform.tables.sinks import JobSink
from service.sinks import outbox
from tests.worker.sinks.samples import (
    BASELINE,
    MLFLOW,
    TENSORBOARD,
    add_job,
    claim,
    end,
    make_due,
    make_steps,
    row_of,
    warnings_of,
)
from worker.sinks.__main__ import follow
from worker.sinks.base import Sink


def failed(database: Database, found: outbox.Claim, reason: str = "It is away.") -> bool:
    with database.transaction() as session:
        return outbox.fail(session, found, reason)


def taken(database: Database) -> outbox.Claim:
    found = claim(database)
    assert found is not None
    return found


def test_a_job_without_metrics_is_not_due(database: Database) -> None:
    add_job(database, TENSORBOARD, state=JobState.QUEUED.value)
    add_job(database, TENSORBOARD)
    assert claim(database) is None


def test_each_sink_of_a_job_is_claimed_once(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, MLFLOW, steps=2)
    first, second = taken(database), taken(database)
    assert {first, second} == {
        outbox.Claim(job_id, "tensorboard", 1),
        outbox.Claim(job_id, "mlflow", 1),
    }
    assert claim(database) is None


def test_a_sink_of_another_pool_is_not_claimed(database: Database) -> None:
    add_job(database, TENSORBOARD, steps=2)
    assert claim(database, pool="other") is None


def test_an_expired_claim_can_be_taken_over_and_its_holder_writes_nothing(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=2)
    first = taken(database)
    make_due(database, job_id)
    second = taken(database)
    with database.transaction() as session:
        assert not outbox.advance(session, first, 2)
        assert not outbox.finish(session, first)
        assert not outbox.fail(session, first, "late")
        assert not outbox.is_held(session, first)
        assert outbox.claimed_rows(session, first) is None
        assert outbox.is_held(session, second)


def test_a_process_that_was_frozen_until_another_took_its_claim_writes_nothing(database: Database) -> None:
    class Written:
        last_step = -1

        def write(self, step: int, values: dict[str, float]) -> None:
            raise AssertionError(f"step {step} is written twice")

    job_id = add_job(database, TENSORBOARD, steps=2)
    frozen = taken(database)
    make_due(database, job_id)
    taken(database)
    assert follow(database, frozen, cast(Sink, Written()), threading.Event()) is None


def test_the_newest_step_of_a_running_job_is_withheld(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    with database.reading() as session:
        found = outbox.new_metrics(session, job_id, -1)
    assert [row["step"] for row in found.rows] == [0, 1, 2]
    assert found.rows[0] == {"step": 0, "eval/reward": BASELINE["baseline"]["reward"]}
    assert not found.is_over
    assert not found.is_at_rest


def test_retention_sets_have_their_evaluation_before_training_as_step_zero(database: Database) -> None:
    retention = {"chat": {"baseline": {"step": 0, "reward": 0.75}, "last": {"step": 2, "reward": 0.5}}}
    job_id = add_job(database, TENSORBOARD, steps=3, evaluation=BASELINE | {"retention": retention})
    with database.reading() as session:
        first = outbox.new_metrics(session, job_id, -1).rows[0]
    assert first == {"step": 0, "eval/reward": 0.25, "eval/chat/reward": 0.75}


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_the_newest_step_of_a_finished_job_is_sent(database: Database, state: JobState) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    end(database, job_id, state)
    with database.reading() as session:
        found = outbox.new_metrics(session, job_id, 1)
    assert [row["step"] for row in found.rows] == [2, 3]
    assert found.is_over


def test_a_paused_job_is_at_rest(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    end(database, job_id, JobState.PAUSED)
    with database.reading() as session:
        assert outbox.new_metrics(session, job_id, 2).is_at_rest


def test_a_long_history_is_read_in_parts(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_ROWS", 4)
    job_id = add_job(database, TENSORBOARD, steps=6)
    end(database, job_id)
    steps, after = [], 0
    for _ in range(2):
        with database.reading() as session:
            found = outbox.new_metrics(session, job_id, after)
        steps.append([row["step"] for row in found.rows])
        after = steps[-1][-1]
    assert steps == [[1, 2, 3, 4], [5, 6]]
    assert found.is_over


def test_failures_are_retried_after_growing_pauses_and_reported_once(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    for number, pause in enumerate(outbox.BACKOFF_SECONDS, start=1):
        assert failed(database, taken(database), f"Failure {number}.")
        with database.reading() as session:
            left = session.scalars(select(JobSink.due_at - db_now())).one()
        assert pause - 60 < left <= pause
        make_due(database, job_id)
    assert failed(database, taken(database), "The last one.")
    row = row_of(database, job_id)
    assert (row.state, row.due_at, row.reason) == ("failed", None, "The last one.")
    assert [warning["code"] for warning in warnings_of(database, job_id)] == ["sink_tensorboard"]
    with database.reading() as session:
        events = session.scalars(select(JobEvent).where(JobEvent.job_id == job_id)).all()
    assert [(event.level, event.data) for event in events] == [("warn", {"code": "sink_tensorboard"})]


def test_a_success_resets_the_failures(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    failed(database, taken(database))
    make_due(database, job_id)
    with database.transaction() as session:
        assert outbox.advance(session, outbox.Claim(job_id, "tensorboard", 1), 2)
    assert row_of(database, job_id).failures == 0


def test_a_finished_job_s_history_is_not_extended(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    end(database, job_id)
    failed(database, taken(database))
    with database.reading() as session:
        assert session.scalars(select(JobEvent)).all() == []
    assert len(warnings_of(database, job_id)) == 1


def test_a_finished_sink_is_never_due_again(database: Database) -> None:
    job_id = add_job(database, TENSORBOARD, steps=3)
    end(database, job_id)
    with database.transaction() as session:
        assert outbox.finish(session, outbox.Claim(job_id, "tensorboard", 0))
    make_steps(database, job_id, 4, 9)
    assert claim(database) is None
    assert row_of(database, job_id).state == "done"
