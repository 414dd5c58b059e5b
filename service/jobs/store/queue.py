"""The queue: renew, release and finish a claimed job; cancel, pause and resume one for a user.

Each transition is one conditional UPDATE that names the old state and, for a worker, the fence: 0 rows mean
that another process was first. Only the database's clock decides. Each state change stores a `status` entry
in the same transaction; an end or a pause also stores a delivery for each subscribed webhook.
"""

from typing import Any, Literal

from sqlalchemy import ColumnElement, bindparam, update
from sqlalchemy.orm import Session

from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.transitions import (
    IS_JOB,
    JOBS,
    LEASES,
    LockedJob,
    WrongState,
    end_attempt,
    holds,
    lock_held,
    locked,
    move,
)
from service.platform.db import Executor

ENDINGS = {
    JobState.SUCCEEDED: "The job has successfully completed.",
    JobState.FAILED: "The job failed.",
    JobState.CANCELLED: "The job was cancelled.",
    JobState.PAUSED: "The job is paused.",
}
Verb = Literal["cancel", "pause", "resume"]
REQUESTS: dict[Verb, dict[JobState, JobState]] = {
    "cancel": {
        JobState.QUEUED: JobState.CANCELLED,
        JobState.PAUSED: JobState.CANCELLED,
        JobState.RUNNING: JobState.CANCELLING,
        JobState.PAUSING: JobState.CANCELLING,
        JobState.CANCELLING: JobState.CANCELLING,
        JobState.CANCELLED: JobState.CANCELLED,
    },
    "pause": {
        JobState.QUEUED: JobState.PAUSED,
        JobState.RUNNING: JobState.PAUSING,
        JobState.PAUSING: JobState.PAUSING,
        JobState.PAUSED: JobState.PAUSED,
    },
    "resume": {
        JobState.PAUSED: JobState.QUEUED,
        JobState.QUEUED: JobState.QUEUED,
        JobState.RUNNING: JobState.RUNNING,
    },
}
"""A user's request → each state that allows it, with the state that follows."""
_HELD = holds(bindparam("job_id"), bindparam("held_fence"))
RENEW = LEASES.renew(_HELD, bindparam("lease_seconds")).returning(JOBS.c.state)


def renew(session: Executor, job_id: str, fence: int, *, lease_seconds: float) -> JobState | None:
    """Extend the lease and return the state (cancelling, pausing). None: the lease is lost.

    Progress is not part of the heartbeat: `recording` writes it earlier, with the events and the same fence.
    """
    given = {"job_id": job_id, "held_fence": fence, "lease_seconds": lease_seconds}
    state = session.scalar(RENEW, given)
    return None if state is None else JobState(state)


def note_phase(session: Session, job_id: str, fence: int, phase: str) -> bool:
    """Store the phase of a claimed job that has no engine yet. False: the fence is stale."""
    held = lock_held(session, job_id, fence)
    if held is None:
        return False
    session.execute(update(JOBS).where(JOBS.c.id == job_id).values(phase=phase))
    message = f"The attempt is {phase}."
    history.append(session, job_id, history.status(JobState(held.state), message, fence, phase=phase))
    return True


def release(
    session: Session,
    job_id: str,
    fence: int,
    *,
    counts_as_failure: bool,
    backoff_seconds: float,
    reason: str,
    max_failures: int = 3,
    evidence: tuple[str, ...] = (),
    failure: dict[str, Any] | None = None,
) -> bool:
    """Requeue the job, or cancel or pause it if that was requested meanwhile. False: the fence is stale.

    Each counted failure doubles the backoff. The `max_failures`-th in a row without a new
    checkpoint ends the job as `poisoned`. `failure`: an exception of the engine, with the same `reason` and
    `evidence`. It ends the job if the previous attempt ended with the same exception and there was no new
    checkpoint.
    """
    job = lock_held(session, job_id, fence)
    if job is None:
        return False
    if failure is not None and job.failures and _is_repeated(session, job_id, reason, evidence):
        return finish(session, job_id, fence, JobState.FAILED, failure=failure)
    budget = max_failures if counts_as_failure else None
    end_attempt(session, job, reason, budget, backoff_seconds, fence, evidence)
    return True


def _is_repeated(session: Session, job_id: str, reason: str, evidence: tuple[str, ...]) -> bool:
    """Whether the last failed attempt ended with the same type of exception, raised at the same place."""
    last = history.newest_failure(session, job_id)
    same_type = last is not None and last.message.partition(":")[0] == reason.partition(":")[0]
    return last is not None and same_type and last.data.get("evidence") == list(evidence)


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
    """End the attempt: succeeded, failed, cancelled or paused. False: the fence is stale.

    If a cancel was requested, only success takes precedence over it.
    """
    results: dict[str, Any] = {"fine_tuned_model": fine_tuned_model, "trained_tokens": trained_tokens}
    values = {name: value for name, value in results.items() if value is not None}
    message = failure["message"] if failure else ENDINGS[state]
    if state is not JobState.CANCELLED and move(
        session, job_id, fence, JobState.RUNNING, state, message, failure=failure, **values
    ):
        return True
    job = lock_held(session, job_id, fence)
    if job is None:
        return False
    if job.state == JobState.CANCELLING.value and state is not JobState.SUCCEEDED:
        state, failure, message = JobState.CANCELLED, None, ENDINGS[JobState.CANCELLED]
    return move(session, job_id, fence, JobState(job.state), state, message, failure=failure, **values)


def request(
    session: Session, tenant: str, job_id: str, verb: Verb, *, of: ColumnElement[bool] = IS_JOB
) -> JobState | None:
    """Change the job's state as `REQUESTS` says and return the new one. None: the tenant has no such job.

    Raises WrongState if the job's state does not allow the request.
    """
    wanted = locked(JOBS.c.id == job_id, JOBS.c.tenant == tenant, of)
    row = session.execute(wanted.with_for_update()).one_or_none()
    if row is None:
        return None
    job = LockedJob._make(row)
    current = JobState(job.state)
    target = REQUESTS[verb].get(current)
    if target is None:
        raise WrongState(current)
    if target is not current:
        values: dict[str, Any] = (
            {"not_before": 0.0, "last_woken_at": 0.0} if target is JobState.QUEUED else {}
        )
        message = ENDINGS.get(target, f"{verb.capitalize()} requested.")
        move(session, job.id, job.fence, current, target, message, **values)
    return target
