"""Requeues expired leases and finds lost wake-ups. Several processes may sweep at the same time."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session, aliased

from service.jobs.model.states import JobState
from service.jobs.store.transitions import LEASES, LockedJob, end_attempt, locked
from service.platform.clock import db_now
from service.platform.tables.core import Job

BATCH = 100
REWAKE_SECONDS = 30.0


def sweep(session: Session, *, backoff_seconds: float, max_failures: int) -> list[LockedJob]:
    """Expired leases → queued with backoff, or cancelled, paused, failed; each under a new fence.

    Returns the jobs with their new states and fences, but with the owners of the leases: the lost workers.
    """
    expired = locked(LEASES.has_expired).order_by(LEASES.expires_at).limit(BATCH)
    rows = session.execute(expired.with_for_update(skip_locked=True)).all()
    reason = "The worker was lost: its lease expired."
    swept = []
    for job in map(LockedJob._make, rows):
        fence = job.fence + 1
        state = end_attempt(session, job, reason, max_failures, backoff_seconds, fence)
        swept.append(job._replace(state=state.value, fence=fence))
    return swept


def due_pools(session: Session) -> list[str]:
    """Pools to wake, one per waiting job whose last wake-up is old; marks them as woken now."""
    waiting = aliased(Job)
    due = (
        select(waiting.id)
        .where(waiting.state == JobState.QUEUED.value, waiting.not_before <= db_now())
        .where(waiting.last_woken_at < db_now() - REWAKE_SECONDS)
        .order_by(waiting.last_woken_at)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    woken = (
        update(Job)
        .where(Job.id.in_(due), Job.state == JobState.QUEUED.value)
        .values(last_woken_at=db_now())
        .returning(Job.pool)
        .execution_options(synchronize_session=False)
    )
    return list(session.execute(woken).scalars())
