"""How many jobs there are, and what became of them: the numbers behind `/metrics`.

Boundary: SELECTs without any tenant in them. They read indexes and no jobs: `ix_jobs_counts` for what has a
state, `ix_jobs_claim` and `ix_jobs_held` for what waits and runs.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.jobs.model.states import HELD, JobState
from service.jobs.store.backlog import IS_QUEUED
from service.jobs.store.transitions import IS_JOB, is_in
from service.platform.clock import db_now
from service.platform.tables.core import Job


class Count(NamedTuple):
    """The jobs of one state and pool."""

    state: str
    pool: str
    num_jobs: int
    num_attempts: int
    num_expired_leases: int
    """Ever. A claim counts the fence and the attempt up, a sweep only the fence."""


COUNTS = (
    select(Job.state, Job.pool, func.count(), func.sum(Job.attempt), func.sum(Job.fence - Job.attempt))
    .where(IS_JOB)
    .group_by(Job.state, Job.pool)
)
_OLDEST = select(Job.pool, db_now() - func.min(Job.created_at)).where(IS_QUEUED).group_by(Job.pool)
_OVERDUE = (
    select(Job.pool, func.count())
    .where(is_in("jobs", *HELD), Job.lease_expires_at < db_now())
    .group_by(Job.pool)
)
_CODE = func.coalesce(Job.failure["code"].as_string(), "unknown")
_CODES = select(_CODE, func.count()).where(is_in("jobs", JobState.FAILED), IS_JOB).group_by(_CODE)


def counts(session: Session) -> list[Count]:
    return [
        Count(state, pool, *(int(number) for number in rest))
        for state, pool, *rest in session.execute(COUNTS)
    ]


def oldest_seconds(session: Session) -> dict[str, float]:
    """Pool → how long ago the oldest of its waiting jobs was submitted."""
    return {pool: max(0.0, seconds) for pool, seconds in session.execute(_OLDEST)}


def overdue_leases(session: Session) -> dict[str, int]:
    """Pool → jobs whose lease has expired, and that no sweeper has taken back yet."""
    return dict(session.execute(_OVERDUE).all())


def failure_codes(session: Session) -> dict[str, int]:
    """Code → failed jobs. It reads those rows themselves: not for each scrape."""
    return dict(session.execute(_CODES).all())
