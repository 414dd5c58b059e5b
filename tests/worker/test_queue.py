"""Claims, fences and transitions, on SQLite and PostgreSQL."""

from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from service.jobs.model.states import JobState
from service.jobs.store import claiming, queue, sweeping
from service.jobs.store.claiming import ClaimedJob
from service.jobs.store.transitions import LockedJob
from service.platform.clock import db_now, read_clock
from service.platform.db import Database
from service.platform.tables.core import Job
from tests.threads import at_once
from tests.worker.jobs import claim, claimed, insert_job, read_job, recorded_states


def expire_lease(database: Database, job_id: str) -> None:
    with database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_expires_at=db_now() - 1))


def sweep(database: Database, backoff_seconds: float = 0, max_failures: int = 3) -> list[LockedJob]:
    with database.transaction() as session:
        return sweeping.sweep(session, backoff_seconds=backoff_seconds, max_failures=max_failures)


def test_a_claim_increments_attempt_and_fence(database: Database) -> None:
    job_id = insert_job(database)
    with database.transaction() as session:
        before = read_clock(session)
    job = claim(database, "w1", lease_seconds=60)
    assert job is not None
    assert (job.id, job.fence, job.attempt) == (job_id, 1, 1)
    row = read_job(database, job_id)
    assert (row.state, row.fence, row.attempt, row.lease_owner) == ("running", 1, 1, "w1")
    assert job == tuple(getattr(row, name) for name in ClaimedJob._fields)
    with database.transaction() as session:
        assert row.lease_expires_at is not None
        assert before + 60 <= row.lease_expires_at <= read_clock(session) + 60
    assert recorded_states(database, job_id) == ["running"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_claim_statement_is_prepared_once(database: Database) -> None:
    for _ in range(12):
        claimed(database)
    # whether PostgreSQL then plans it once or each time depends on the table's statistics
    plans = (
        "SELECT generic_plans + custom_plans FROM pg_prepared_statements"
        " WHERE statement LIKE 'UPDATE jobs%candidate%'"
    )
    with database.reading() as session:
        num_executions = session.scalars(text(plans)).all()
    assert num_executions == [7], "psycopg prepares a statement when it is executed for the sixth time"


def claim_with(
    database: Database, gpus: int, all_gpus: int, max_running: int | None = None, memory: int = 0
) -> str | None:
    """Id of the job that a machine claims with this many free GPUs."""
    given = {"pool": "default", "worker": "w", "lease_seconds": 60.0, "max_running": max_running}
    given |= {"gpus": gpus, "all_gpus": all_gpus, "gpu_memory_gb": memory}
    with database.connection() as session:
        job = claiming.claim(session, **given)  # type: ignore[arg-type]
    return None if job is None else job.id


def test_younger_jobs_overtake_one_that_waits_for_gpus_only_for_ten_minutes(database: Database) -> None:
    with database.reading() as session:
        now = session.execute(select(db_now())).scalar_one()
    overtaken = claiming.OVERTAKEN_SECONDS
    waiting = insert_job(database, required_gpus=2, created_at=now - overtaken + 60)
    small = [insert_job(database, required_gpus=1, created_at=now) for _ in range(2)]
    older = insert_job(database, created_at=now - 2 * overtaken)
    assert claim_with(database, gpus=1, all_gpus=2) == older
    assert claim_with(database, gpus=1, all_gpus=2) == small[0]
    with database.transaction() as session:
        session.execute(update(Job).where(Job.id == waiting).values(created_at=now - overtaken - 60))
    assert claim_with(database, gpus=1, all_gpus=2) is None
    assert claim_with(database, gpus=2, all_gpus=2) == waiting
    assert claim_with(database, gpus=1, all_gpus=2) == small[1]


def test_a_job_that_this_machine_or_its_tenant_may_not_run_holds_no_other_back(database: Database) -> None:
    insert_job(database, required_gpus=4, created_at=1.0)
    insert_job(database, required_gpus=2, created_at=2.0, tenant="busy")
    insert_job(database, required_gpus=2, created_at=2.0, required_gpu_memory_gb=80)
    insert_job(database, required_gpus=2, created_at=2.0, pool="other")
    insert_job(database, state=JobState.RUNNING.value, tenant="busy", fence=1, lease_expires_at=1e12)
    small = insert_job(database, created_at=3.0)
    assert claim_with(database, gpus=1, all_gpus=2, max_running=1) == small


def test_only_eligible_jobs_are_claimed(database: Database) -> None:
    insert_job(database, state=JobState.PAUSED.value)
    insert_job(database, pool="other")
    insert_job(database, not_before=1e12)
    large = insert_job(database, required_gpu_memory_gb=80)
    assert claim_with(database, gpus=0, all_gpus=0, memory=79) is None
    assert claim_with(database, gpus=0, all_gpus=0, memory=80) == large


def test_jobs_are_claimed_by_priority_then_age(database: Database) -> None:
    young = insert_job(database, created_at=2.0)
    old = insert_job(database, created_at=1.0)
    urgent = insert_job(database, created_at=3.0, priority=5)
    order = [job.id for job in (claim(database), claim(database), claim(database)) if job]
    assert order == [urgent, old, young]


def test_a_thousand_claim_races_have_one_winner_each(database: Database) -> None:
    """Four workers race for each of 250 jobs."""
    ids = [insert_job(database) for _ in range(250)]
    winners: Counter[str] = Counter()

    def race(_number: int) -> None:
        while (job := claim(database)) is not None:
            winners[job.id] += 1

    at_once(4, race)
    assert winners == Counter(ids)
    assert {read_job(database, job_id).fence for job_id in ids} == {1}


def test_a_renewal_extends_the_lease(database: Database) -> None:
    job = claimed(database)
    expire_lease(database, job.id)
    with database.transaction() as session:
        assert queue.renew(session, job.id, 1, lease_seconds=60) is JobState.RUNNING
    assert sweep(database) == []


STALE_WRITES: dict[str, Callable[[Session, str], object]] = {
    "renew": lambda session, job_id: queue.renew(session, job_id, 1, lease_seconds=60),
    "release": lambda session, job_id: queue.release(
        session, job_id, 1, counts_as_failure=False, backoff_seconds=0, reason=""
    ),
    "finish": lambda session, job_id: queue.finish(session, job_id, 1, JobState.SUCCEEDED),
}


@pytest.mark.parametrize("write", STALE_WRITES)
def test_a_stale_fence_changes_nothing(database: Database, write: str) -> None:
    job = claimed(database)
    expire_lease(database, job.id)
    sweep(database)
    claim(database, "second")
    before = read_job(database, job.id)
    with database.transaction() as session:
        assert not STALE_WRITES[write](session, job.id)
    after = read_job(database, job.id)
    assert (after.state, after.fence, after.lease_expires_at) == ("running", 3, before.lease_expires_at)


def test_expired_leases_are_requeued_with_a_backoff_that_doubles_up_to_five_minutes(
    database: Database,
) -> None:
    job = claimed(database)
    started_at = read_job(database, job.id).started_at
    for pause in (160, 300):
        expire_lease(database, job.id)
        with database.transaction() as session:
            before = read_clock(session)
        (swept,) = sweep(database, backoff_seconds=160)
        assert (swept.id, swept.state, swept.lease_owner) == (job.id, JobState.QUEUED, "w")
        with database.transaction() as session:
            not_before = session.scalars(select(Job.not_before)).one()
            assert before + pause <= not_before <= read_clock(session) + pause
            session.execute(update(Job).values(not_before=0))
        assert claim(database) is not None
    row = read_job(database, job.id)
    assert (row.fence, row.attempt, row.failures, row.started_at) == (5, 3, 2, started_at)


def test_the_third_attempt_without_a_checkpoint_poisons_the_job(database: Database) -> None:
    job = claimed(database)
    for ending in (JobState.QUEUED, JobState.QUEUED, JobState.FAILED):
        expire_lease(database, job.id)
        assert [swept.state for swept in sweep(database)] == [ending]
        claim(database)
    row = read_job(database, job.id)
    assert row.failure is not None
    assert (row.state, row.failure["code"], row.attempt) == ("failed", "poisoned", 3)
    assert row.finished_at is not None
    assert recorded_states(database, job.id)[-1] == "failed"
    assert row.failure["message"].startswith("3 attempts in a row ended without a new checkpoint. The last: ")


def test_the_failure_of_a_job_that_is_tried_once_counts_no_attempts(database: Database) -> None:
    job = claimed(database)
    expire_lease(database, job.id)
    sweep(database, max_failures=1)
    failure = read_job(database, job.id).failure
    assert failure is not None
    assert failure["message"].startswith("The attempt ended without a new checkpoint. The worker")


@pytest.mark.parametrize(("verb", "ending"), [("cancel", "cancelled"), ("pause", "paused")])
def test_the_sweeper_completes_requests_of_dead_workers(
    database: Database, verb: queue.Verb, ending: str
) -> None:
    job = claimed(database)
    with database.transaction() as session:
        queue.request(session, "acme", job.id, verb)
    expire_lease(database, job.id)
    sweep(database)
    assert read_job(database, job.id).state == ending


def test_only_a_release_for_a_failure_is_counted(database: Database) -> None:
    job = claimed(database)
    with database.transaction() as session:
        assert queue.release(session, job.id, 1, counts_as_failure=False, backoff_seconds=0, reason="drained")
    row = read_job(database, job.id)
    assert (row.state, row.failures, row.lease_owner, row.lease_expires_at) == ("queued", 0, None, None)
    claim(database)
    with database.transaction() as session:
        queue.release(session, job.id, 2, counts_as_failure=True, backoff_seconds=0, reason="engine died")
    assert read_job(database, job.id).failures == 1


@pytest.mark.parametrize(
    ("reason", "place", "failures", "state"),
    [
        ("ValueError: now 2", "a.py:1", 1, "failed"),
        ("TypeError: now 2", "a.py:1", 1, "queued"),
        ("ValueError: now 2", "b.py:1", 1, "queued"),
        ("ValueError: now 2", "a.py:1", 0, "queued"),
    ],
)
def test_the_same_exception_ends_a_job_unless_there_was_a_checkpoint_in_between(
    database: Database, reason: str, place: str, failures: int, state: str
) -> None:
    def fail(fence: int, reason: str, place: str) -> None:
        given = {"counts_as_failure": True, "backoff_seconds": 0, "evidence": (place,)}
        failure = {"code": "engine_error", "message": reason}
        with database.transaction() as session:
            assert queue.release(session, job.id, fence, reason=reason, failure=failure, **given)

    job = claimed(database)
    fail(1, "ValueError: was 1", "a.py:1")
    with database.transaction() as session:
        session.execute(update(Job).values(failures=failures))
    claim(database)
    fail(2, reason, place)
    assert read_job(database, job.id).state == state


def test_waiting_jobs_are_woken_once_per_interval(database: Database) -> None:
    insert_job(database, pool="gpu")
    insert_job(database, pool="cpu")
    insert_job(database, pool="later", not_before=1e12)
    with database.transaction() as session:
        assert sorted(sweeping.due_pools(session)) == ["cpu", "gpu"]
    with database.transaction() as session:
        assert sweeping.due_pools(session) == []


def test_a_resumed_job_neither_backs_off_nor_waits_for_its_next_wake_up(database: Database) -> None:
    job_id = insert_job(database, state="paused", not_before=1e12, last_woken_at=1e12)
    with database.transaction() as session:
        queue.request(session, "acme", job_id, "resume")
        assert len(sweeping.due_pools(session)) == 1
    job = claim(database)
    assert job is not None
    assert job.id == job_id


def test_two_sweepers_requeue_a_job_once(database: Database) -> None:
    jobs = [claimed(database) for _ in range(20)]
    for job in jobs:
        expire_lease(database, job.id)
    found = at_once(2, lambda _: sweep(database))
    assert sorted(swept.id for each in found for swept in each) == sorted(job.id for job in jobs)
