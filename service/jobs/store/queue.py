"""Who holds a job: claim, renew, release, finish, sweep, and what a user may ask for.

Each transition is one conditional UPDATE that names the state it comes from and, on the worker's side, the
fence; 0 rows means somebody else was first. Only the database's clock decides. The row is locked before
it moves, so that the choice of the next state and the UPDATE see the same row: `FOR UPDATE` on PostgreSQL,
`BEGIN IMMEDIATE` on SQLite. Every state change appends a `status` entry in the same transaction; an end or a
rest also writes a delivery for each webhook that wants to hear of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from service.jobs.model import names
from service.jobs.model.states import HELD, TERMINAL, TRANSITIONS, JobState
from service.jobs.store import history, statements, webhook_events
from service.jobs.store.claimed import ClaimedJob
from service.jobs.store.machines import satisfied_by
from service.platform.db import Executor, is_postgresql
from service.platform.tables.core import Job

MAX_BACKOFF_SECONDS = 300.0
CLAIM_PAUSE = "5s"
"""So long may a worker that was stopped in the middle of its claim keep others from theirs."""
HELD_STATES = [state.value for state in HELD]
QUIET = {"synchronize_session": False}


class Held(NamedTuple):
    """What a transition chooses by, of a locked row."""

    id: str
    state: str
    fence: int
    failures: int


class WrongState(Exception):
    """The job's state does not allow what was asked."""

    def __init__(self, current: JobState) -> None:
        super().__init__(f"the job is {current.value}")
        self.current = current


def claim(
    session: Executor,
    *,
    pool: str,
    worker: str,
    lease_seconds: float,
    capabilities: Collection[str] = (),
    gpus: int = 0,
    max_running: int | None = None,
) -> ClaimedJob | None:
    """Take the best eligible job: running, under a new fence and a lease. None: nothing to do.

    A job that needs what is not among the worker's `capabilities`, or more `gpus`, is left for others. With
    `max_running` so is one whose tenant has that many on workers already; claims then wait for one another,
    which needs a transaction of more than one statement.
    """
    limited = max_running is not None
    given: dict[str, Any] = {"of_pool": pool, "worker": worker, "lease_seconds": lease_seconds}
    given |= {"satisfied": satisfied_by(capabilities), "gpus": gpus}
    if limited:
        given |= {"max_running": max_running}
        _wait_for_claims(session)
    if history.is_told_by_statement(session):
        given |= history.parameters(_status(JobState.RUNNING, "", 0))
        claiming = statements.CLAIM_WITHIN_LIMIT_TELLING if limited else statements.CLAIM_TELLING
        told = session.execute(claiming, given).one_or_none()
        return None if told is None else ClaimedJob._make(told)
    row = session.execute(statements.CLAIM_WITHIN_LIMIT if limited else statements.CLAIM, given).one_or_none()
    if row is None:
        return None
    job = ClaimedJob._make(row[: len(ClaimedJob._fields)])
    message = f"Attempt {job.attempt} started on {worker}."
    history.store(session, job.id, job.event_sequence, _status(JobState.RUNNING, message, job.fence))
    return job


def _wait_for_claims(session: Executor) -> None:
    """Two claims at once would both count the jobs of before. SQLite's BEGIN IMMEDIATE has waited already."""
    if is_postgresql(session):
        session.execute(statements.LOCK_CLAIMS, {"longest_pause": CLAIM_PAUSE})


def renew(session: Executor, job_id: str, fence: int, *, lease_seconds: float) -> JobState | None:
    """Extend the lease; answers the state (cancelling, pausing). None: lost.

    Progress needs no heartbeat: `recording` writes it with the events, under the same fence and sooner.
    """
    held = {"job_id": job_id, "held_fence": fence, "lease_seconds": lease_seconds}
    state = session.scalar(statements.RENEW, held)
    return None if state is None else JobState(state)


def release(
    session: Session,
    job_id: str,
    fence: int,
    *,
    spend_failure: bool,
    backoff_seconds: float,
    reason: str,
    max_failures: int = 3,
    evidence: tuple[str, ...] = (),
) -> bool:
    """Give the job back: queued again, or what was asked meanwhile (cancelled, paused).

    A spent failure doubles the backoff each time and, as the `max_failures`-th in a row without a new
    checkpoint, ends the job as `poisoned`. False: the fence is stale.
    """
    held = _lock_held(session, job_id, fence)
    if held is None:
        return False
    budget = max_failures if spend_failure else None
    end_attempt(session, held, reason, budget, backoff_seconds, fence, evidence)
    return True


def finish(
    session: Executor,
    job_id: str,
    fence: int,
    state: JobState,
    *,
    failure: dict[str, Any] | None = None,
    fine_tuned_model: str | None = None,
    trained_tokens: int | None = None,
) -> bool:
    """The attempt's end: succeeded, failed, cancelled or paused. False: the fence is stale.

    Where a cancel was asked for, only success is stronger than it. It is right in a transaction and without
    one: where nothing was asked for, it is one statement, and else it tries until what it saw still holds.
    """
    results: dict[str, Any] = {"fine_tuned_model": fine_tuned_model, "trained_tokens": trained_tokens}
    given = {name: value for name, value in results.items() if value is not None}
    message = failure["message"] if failure else ENDINGS[state]
    usual = Held(job_id, JobState.RUNNING.value, fence, 0)
    if state in TRANSITIONS[JobState.RUNNING] and _move(
        session, usual, state, message, failure=failure, **given
    ):
        return True
    while (held := _lock_held(session, job_id, fence)) is not None:
        if held.state == JobState.CANCELLING.value and state is not JobState.SUCCEEDED:
            state, failure, message = JobState.CANCELLED, None, ENDINGS[JobState.CANCELLED]
        if _move(session, held, state, message, failure=failure, **given):
            return True
    return False


def request_cancel(
    session: Session, tenant: str, job_id: str, *, of: ColumnElement[bool] = statements.IS_JOB
) -> JobState | None:
    """Ask for the end: at once where nobody runs it, else `cancelling`. None: the tenant has no such job."""
    targets = {
        JobState.QUEUED: JobState.CANCELLED,
        JobState.PAUSED: JobState.CANCELLED,
        JobState.RUNNING: JobState.CANCELLING,
        JobState.PAUSING: JobState.CANCELLING,
    }
    already = {JobState.CANCELLING, JobState.CANCELLED}
    return _request(session, tenant, job_id, targets, already, "Cancel requested.", of)


def request_pause(session: Session, tenant: str, job_id: str) -> JobState | None:
    """Ask for a rest after a checkpoint. None: the tenant has no such job."""
    targets = {JobState.QUEUED: JobState.PAUSED, JobState.RUNNING: JobState.PAUSING}
    already = {JobState.PAUSING, JobState.PAUSED}
    return _request(session, tenant, job_id, targets, already, "Pause requested.")


def request_resume(session: Session, tenant: str, job_id: str) -> JobState | None:
    """Queue a paused job again. None: the tenant has no such job."""
    targets = {JobState.PAUSED: JobState.QUEUED}
    return _request(session, tenant, job_id, targets, set(), "Resume requested.")


ENDINGS = {
    JobState.SUCCEEDED: "The job has successfully completed.",
    JobState.FAILED: "The job failed.",
    JobState.CANCELLED: "The job was cancelled.",
    JobState.PAUSED: "The job is paused.",
}


def holds(job_id: str, fence: int) -> tuple[ColumnElement[bool], ...]:
    """Conditions under which the claim with this fence may still write."""
    return (Job.id == job_id, Job.fence == fence, Job.state.in_(HELD_STATES))


def _lock_held(session: Executor, job_id: str, fence: int) -> Held | None:
    """The claim's row, locked; None where the fence is stale."""
    row = session.execute(statements.LOCK_HELD, {"job_id": job_id, "held_fence": fence}).one_or_none()
    return None if row is None else Held(*row)


def locked(*conditions: ColumnElement[bool]) -> Select[str, str, int, int]:
    """Rows a transition chooses from."""
    return select(*statements.LOCKED).where(*conditions)


def lock(session: Session, *conditions: ColumnElement[bool]) -> Held | None:
    """The one row that meets the conditions, locked until the transaction ends."""
    row = session.execute(locked(*conditions).with_for_update()).one_or_none()
    return None if row is None else Held(*row)


def end_attempt(
    session: Session,
    held: Held,
    reason: str,
    max_failures: int | None,
    backoff_seconds: float,
    next_fence: int,
    evidence: tuple[str, ...] = (),
) -> JobState:
    """Where an attempt without a result leads; `max_failures` None: it costs nothing. Answers the state."""
    asked = {JobState.CANCELLING: JobState.CANCELLED, JobState.PAUSING: JobState.PAUSED}
    target = asked.get(JobState(held.state), JobState.QUEUED)
    values: dict[str, Any] = {"fence": next_fence}
    level = "info"
    if target is JobState.QUEUED and max_failures is not None:
        level = "warn"
        values["failures"] = held.failures + 1
        if held.failures + 1 >= max_failures:
            target, level = JobState.FAILED, "error"
            values["failure"] = poisoned(reason, max_failures, evidence)
    if target is JobState.QUEUED:
        pause = min(MAX_BACKOFF_SECONDS, backoff_seconds * 2.0**held.failures)
        values[statements.WAIT_SECONDS] = pause
    _move(session, held, target, reason, level, **values)
    return target


def poisoned(reason: str, attempts: int, evidence: tuple[str, ...]) -> dict[str, Any]:
    """The failure of a job that ends its engine again and again."""
    return {
        "code": "poisoned",
        "message": f"{attempts} attempts in a row ended without a new checkpoint. The last: {reason}",
        "hint": "Look at the evidence; a smaller job or a lower checkpoint_interval may get further.",
        "evidence": list(evidence),
    }


def _status(state: JobState, message: str, fence: int, level: str = "info") -> history.Entry:
    phase = "preparing" if state is JobState.RUNNING else state.value
    return history.status(state, message, phase=phase, fence=fence, level=level)


def _move(
    session: Executor, held: Held, target: JobState, message: str, level: str = "info", **values: Any
) -> bool:
    """The transition itself. Raises WrongState where the table does not know it."""
    if target not in TRANSITIONS[JobState(held.state)]:
        raise WrongState(JobState(held.state))
    if target not in HELD:
        values |= {"lease_owner": None, "lease_expires_at": None}
    if target in TERMINAL:
        values[statements.ENDS_NOW] = None
    statement, new = statements.move(values | {"state": target.value, "phase": target.value})
    guard = {"job_id": held.id, "from_state": held.state, "held_fence": held.fence}
    level = "error" if target is JobState.FAILED else level
    entry = _status(target, message, values.get("fence", held.fence), level)
    announced = webhook_events.parameters(target) if names.is_job(held.id) else {}
    return history.move(session, statement, new | guard, entry, announced)


def _request(
    session: Session,
    tenant: str,
    job_id: str,
    targets: dict[JobState, JobState],
    already: set[JobState],
    message: str,
    of: ColumnElement[bool] = statements.IS_JOB,
) -> JobState | None:
    held = lock(session, Job.id == job_id, Job.tenant == tenant, of)
    if held is None:
        return None
    current = JobState(held.state)
    if current in already:
        return current
    if current not in targets:
        raise WrongState(current)
    target = targets[current]
    values: dict[str, Any] = {"not_before": 0.0, "last_woken_at": 0.0} if target is JobState.QUEUED else {}
    _move(session, held, target, ENDINGS.get(target, message), **values)
    return target
