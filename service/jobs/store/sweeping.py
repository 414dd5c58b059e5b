"""What nobody holds any more, and what nobody was told about. Any number of processes may sweep."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session, aliased

from service.jobs.model.states import HELD, JobState
from service.jobs.store.queue import QUIET, Held, end_attempt, locked
from service.jobs.store.statements import is_in
from service.platform.clock import db_now
from service.platform.tables.core import Job

BATCH = 100
REWAKE_SECONDS = 30.0


@dataclass(frozen=True)
class Swept:
    """A job whose lease had expired, and where it went."""

    job_id: str
    state: JobState
    tenant: str
    attempt: int
    fence: int
    """From now on; that of the lost worker is older."""
    worker: str
    """Who held it."""


def sweep(session: Session, *, backoff_seconds: float, max_failures: int) -> list[Swept]:
    """Expired leases → queued with backoff, or cancelled, paused, failed; each under a new fence."""
    expired = locked(is_in("jobs", *HELD), Job.lease_expires_at < db_now()).add_columns(
        Job.tenant, Job.attempt, Job.lease_owner
    )
    rows = session.execute(
        expired.order_by(Job.lease_expires_at).limit(BATCH).with_for_update(skip_locked=True)
    ).all()
    reason = "The worker was lost: its lease expired."
    swept = []
    for *columns, tenant, attempt, worker in rows:
        held = Held(*columns)
        state = end_attempt(session, held, reason, max_failures, backoff_seconds, held.fence + 1)
        swept.append(Swept(held.id, state, tenant, attempt, held.fence + 1, worker))
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
        .execution_options(**QUIET)
    )
    return list(session.execute(woken).scalars())
