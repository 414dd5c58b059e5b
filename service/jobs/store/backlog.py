"""What is not finished yet: how much of a tenant's, and which place a waiting job has.

Boundary: SELECTs. States stand in the statements as words, so that every plan may use the partial indexes.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Integer, bindparam, func, select
from sqlalchemy.orm import Session

from service.jobs.model.states import HELD, TERMINAL, JobState
from service.jobs.store.transitions import is_in
from service.platform.tables.core import Job

MAX_PLACE = 1000
"""Further back nobody counts: on each poll that would cost a look at the whole queue."""
IS_QUEUED = is_in("jobs", JobState.QUEUED)
IS_UNFINISHED = is_in("jobs", *(state for state in JobState if state not in TERMINAL))
_NUM_UNFINISHED, _NUM_HELD = (
    select(func.count()).select_from(
        select(Job.id)
        .where(Job.tenant == bindparam("of_tenant"), condition)
        .limit(bindparam("at_most", type_=Integer))
        .subquery()
    )
    for condition in (IS_UNFINISHED, is_in("jobs", *HELD))
)
_ORDER = (Job.priority.desc(), Job.created_at)
_HEAD = (
    select(Job.id, func.row_number().over(order_by=_ORDER).label("place"))
    .where(IS_QUEUED, Job.pool == bindparam("of_pool"))
    .order_by(*_ORDER)
    .limit(MAX_PLACE)
    .subquery()
)
_PLACES = select(_HEAD.c.id, _HEAD.c.place).where(_HEAD.c.id.in_(bindparam("ids", expanding=True)))


def num_unfinished(session: Session, tenant: str, limit: int) -> int:
    """Jobs of the tenant that are not over, counted up to `limit`."""
    return session.scalar(_NUM_UNFINISHED, {"of_tenant": tenant, "at_most": limit}) or 0


def is_running_all_it_may(session: Session, tenant: str, max_running: int | None) -> bool:
    """Whether as many of the tenant's jobs are on workers as may be at once; the others wait for them."""
    if max_running is None:
        return False
    return session.scalar(_NUM_HELD, {"of_tenant": tenant, "at_most": max_running}) == max_running


def queue_places(session: Session, jobs: Iterable[Job]) -> dict[str, int]:
    """Id → place in its pool's queue, from 1, in the order in which workers claim; up to `MAX_PLACE`."""
    waiting: dict[str, list[str]] = {}
    for job in jobs:
        if job.state == JobState.QUEUED.value:
            waiting.setdefault(job.pool, []).append(job.id)
    places: dict[str, int] = {}
    for pool, ids in waiting.items():
        found = session.execute(_PLACES, {"of_pool": pool, "ids": ids})
        places |= dict(found.all())
    return places
