"""Cancel, pause and resume, concurrent with the worker, on SQLite and PostgreSQL."""

import threading
from contextlib import suppress

import pytest

from service.jobs.model.states import TERMINAL, TRANSITIONS, JobState
from service.jobs.store import queue
from service.platform.db import Database
from tests.worker.jobs import claim, claimed, insert_job, read_job, recorded_states


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_cancel_takes_precedence_over_failure_but_not_over_success(
    database: Database, end: JobState
) -> None:
    job = claimed(database)
    with database.transaction() as session:
        assert queue.request(session, "acme", job.id, "cancel") is JobState.CANCELLING
    failure = {"code": "non_finite", "message": "NaN"} if end is JobState.FAILED else None
    with database.transaction() as session:
        assert queue.finish(session, job.id, 1, end, failure=failure)
    row = read_job(database, job.id)
    expected = "succeeded" if end is JobState.SUCCEEDED else "cancelled"
    assert (row.state, row.failure) == (expected, None)


def test_a_cancel_and_a_failure_never_both_take_effect(database: Database) -> None:
    for _ in range(30):
        job = claimed(database)
        start = threading.Barrier(2)
        answers: list[JobState | None] = []

        def cancel(
            job_id: str = job.id, start: threading.Barrier = start, answers: list[JobState | None] = answers
        ) -> None:
            start.wait()
            with suppress(queue.WrongState), database.transaction() as session:
                answers.append(queue.request(session, "acme", job_id, "cancel"))

        thread = threading.Thread(target=cancel)
        thread.start()
        start.wait()
        with database.transaction() as session:
            assert queue.finish(session, job.id, 1, JobState.FAILED, failure={"message": "NaN"})
        thread.join()
        assert read_job(database, job.id).state == ("cancelled" if answers else "failed")


EXPECTED = {
    ("cancel", "queued"): "cancelled",
    ("cancel", "running"): "cancelling",
    ("cancel", "pausing"): "cancelling",
    ("cancel", "paused"): "cancelled",
    ("cancel", "cancelling"): "cancelling",
    ("cancel", "cancelled"): "cancelled",
    ("pause", "queued"): "paused",
    ("pause", "running"): "pausing",
    ("pause", "pausing"): "pausing",
    ("pause", "paused"): "paused",
    ("resume", "paused"): "queued",
    ("resume", "queued"): "queued",
    ("resume", "running"): "running",
}


@pytest.mark.parametrize("state", [state.value for state in JobState])
@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_requests_follow_the_transition_table(database: Database, verb: queue.Verb, state: str) -> None:
    job_id = insert_job(database, state=state)
    expected = EXPECTED.get((verb, state))
    if expected is None:
        with pytest.raises(queue.WrongState) as refused, database.transaction() as session:
            queue.request(session, "acme", job_id, verb)
        assert refused.value.current.value == state
    else:
        with database.transaction() as session:
            assert queue.request(session, "acme", job_id, verb) == expected
    assert read_job(database, job_id).state == (expected or state)
    changed = expected not in (None, state)
    assert recorded_states(database, job_id) == ([expected] if changed else [])


def test_another_tenant_s_job_is_not_found(database: Database) -> None:
    job_id = insert_job(database)
    with database.transaction() as session:
        assert queue.request(session, "other", job_id, "cancel") is None
    assert read_job(database, job_id).state == "queued"


def test_a_concurrent_cancel_and_claim_leave_a_consistent_state(database: Database) -> None:
    for _ in range(30):
        job_id = insert_job(database)
        start = threading.Barrier(2)

        def cancel(job_id: str = job_id, start: threading.Barrier = start) -> None:
            start.wait()
            with database.transaction() as session:
                queue.request(session, "acme", job_id, "cancel")

        thread = threading.Thread(target=cancel)
        thread.start()
        start.wait()
        job = claim(database)
        thread.join()
        assert read_job(database, job_id).state == ("cancelled" if job is None else "cancelling")


def test_terminal_states_have_no_transitions(database: Database) -> None:
    assert {state for state in JobState if not TRANSITIONS[state]} == TERMINAL
    job_id = insert_job(database, state=JobState.SUCCEEDED.value, fence=1)
    with database.transaction() as session:
        assert not queue.finish(session, job_id, 1, JobState.FAILED)
    assert read_job(database, job_id).state == "succeeded"
