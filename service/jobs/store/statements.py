"""The queue's statements, built once: to build one takes longer than the database takes to run it.

Boundary: SQL with named parameters; when each is used, and what follows from its answer, is `queue.py`'s.
States stand in them as words and not as parameters, so that a plan made once may use the partial indexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Insert,
    Integer,
    Select,
    String,
    Table,
    Update,
    and_,
    any_,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.dml import ReturningUpdate

from service.jobs.model.states import HELD, JobState
from service.jobs.store.claimed import COLUMNS
from service.jobs.store.webhook_events import announcement
from service.platform.clock import db_now
from service.platform.tables.core import Job, JobEvent

JOBS = cast(Table, Job.__table__)
EVENTS = cast(Table, JobEvent.__table__)
CANDIDATE = JOBS.alias("candidate")
CLAIMS_LOCK = 0x6772706F
"""A number of PostgreSQL's advisory locks; those of tenants are 64 bits of a digest."""
WAIT_SECONDS = "wait_seconds"
ENDS_NOW = "ends_now"
TIMES = {
    WAIT_SECONDS: ("not_before", db_now() + bindparam(f"new_{WAIT_SECONDS}")),
    ENDS_NOW: ("finished_at", db_now()),
}
"""Changes by the database's clock: their names, the columns they set and to what."""


ONE = literal_column("1", Integer())
"""Written into a statement: a parameter costs more to send than to use, and a plan knows nothing of it."""


def word(value: str) -> ColumnElement[str]:
    """A plain word as part of a statement."""
    return literal_column(repr(value), String())


def is_in(table: str, *states: JobState) -> ColumnElement[bool]:
    """Condition on a table's (or an alias's) column `state`."""
    words = ", ".join(repr(state.value) for state in sorted(states))
    return literal_column(f"{table}.state IN ({words})", Boolean())


IS_PROBE, IS_EXPORT = JOBS.c.probe.is_not(None), JOBS.c.export.is_not(None)
"""Rows of the queue that are no fine-tuning jobs."""
IS_JOB = and_(JOBS.c.probe.is_(None), JOBS.c.export.is_(None))
LOCKED = (JOBS.c.id, JOBS.c.state, JOBS.c.fence, JOBS.c.failures)
"""What a transition chooses by."""
_IS_HELD = and_(
    JOBS.c.id == bindparam("job_id"), JOBS.c.fence == bindparam("held_fence"), is_in("jobs", *HELD)
)


def _eligible(meets_needs: ColumnElement[bool]) -> Select[str]:
    return (
        select(CANDIDATE.c.id)
        .where(is_in("candidate", JobState.QUEUED), CANDIDATE.c.pool == bindparam("of_pool"))
        .where(CANDIDATE.c.not_before <= db_now())
        .where(meets_needs)
        .where(CANDIDATE.c.required_gpus <= bindparam("gpus"))
        .order_by(CANDIDATE.c.priority.desc(), CANDIDATE.c.created_at)
        .limit(ONE)
        .with_for_update(skip_locked=True)
    )


_NEEDS = CANDIDATE.c.required_capabilities
_ELIGIBLE = _eligible(_NEEDS.in_(bindparam("satisfied", expanding=True)))
_ELIGIBLE_ON_POSTGRESQL = _eligible(any_(bindparam("satisfied", type_=ARRAY(String))) == _NEEDS)
"""Its text is the same for any number of capabilities."""
_HOLDING = JOBS.alias("holding")
_AT_THEIR_LIMIT = (
    select(_HOLDING.c.tenant)
    .where(is_in("holding", *HELD))
    .group_by(_HOLDING.c.tenant)
    .having(func.count() >= bindparam("max_running", type_=Integer))
)
_WITHIN_LIMIT = CANDIDATE.c.tenant.not_in(_AT_THEIR_LIMIT)


def _claiming(eligible: Select[str]) -> ReturningUpdate[Any]:
    return (
        update(JOBS)
        # that one is queued and locked: to say so once more would let the planner walk the queue for its id
        .where(JOBS.c.id == eligible.scalar_subquery())
        .values(
            state=word(JobState.RUNNING.value),
            phase=word("preparing"),
            fence=JOBS.c.fence + ONE,
            attempt=JOBS.c.attempt + ONE,
            lease_owner=bindparam("worker"),
            lease_expires_at=db_now() + bindparam("lease_seconds"),
            started_at=func.coalesce(JOBS.c.started_at, db_now()),
            event_sequence=JOBS.c.event_sequence + ONE,
        )
        .returning(*COLUMNS, JOBS.c.lease_owner)
    )


CLAIM = _claiming(_ELIGIBLE)
CLAIM_WITHIN_LIMIT = _claiming(_ELIGIBLE.where(_WITHIN_LIMIT))
"""`CLAIM` that leaves the jobs of tenants with `max_running` running ones to wait."""
LOCK_CLAIMS = select(
    func.set_config("idle_in_transaction_session_timeout", bindparam("longest_pause"), True),
    func.pg_advisory_xact_lock(CLAIMS_LOCK),
)
"""Held until the transaction ends. The next statement sees what was committed before it was granted. Who
pauses longer in between (a stopped process) loses its connection, and with it the lock."""
RENEW = (
    update(JOBS)
    .where(_IS_HELD)
    .values(lease_expires_at=db_now() + bindparam("lease_seconds"))
    .returning(JOBS.c.state)
)
LOCK_HELD = select(*LOCKED).where(_IS_HELD).with_for_update()
ADD_EVENTS: Insert = insert(EVENTS)
ANNOUNCE = announcement(bindparam("of_tenant", type_=String), bindparam("job_id", type_=String))


def move(values: Mapping[str, Any]) -> tuple[Update, dict[str, Any]]:
    """The guarded change of one row to new values, and its parameters.

    Three more are the caller's: `job_id`, `from_state`, `held_fence`.
    """
    given = {f"new_{name}": value for name, value in values.items() if name != ENDS_NOW}
    return _move(tuple(sorted(values))), given


@cache
def _move(names: tuple[str, ...]) -> Update:
    changes: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names if name not in TIMES}
    changes |= {TIMES[name][0]: TIMES[name][1] for name in names if name in TIMES}
    where = (JOBS.c.id == bindparam("job_id"), JOBS.c.fence == bindparam("held_fence"))
    return (
        update(JOBS)
        .where(*where, JOBS.c.state == bindparam("from_state"))
        .values({**changes, "event_sequence": JOBS.c.event_sequence + ONE})
        .returning(JOBS.c.id, JOBS.c.fence, JOBS.c.event_sequence, JOBS.c.tenant)
    )


@cache
def telling(moving: Update, *, announced: bool) -> Select[Any]:
    """A change of one row that also stores its history entry, in one statement: PostgreSQL's way.

    The entry's `event_message`, `event_level` and `event_data` are the caller's; where the change is
    `announced` to webhooks, that event's parameters too.
    """
    moved = moving.cte("moved")
    stored = [_told(moved, bindparam("event_message"))]
    if announced:
        stored.append(announcement(moved.c.tenant, moved.c.id).cte("announced"))
    return select(moved.c.fence, moved.c.event_sequence).add_cte(*stored)


def _told(moved: CTE, message: ColumnElement[str]) -> CTE:
    columns: dict[str, ColumnElement[Any]] = {
        "job_id": moved.c.id,
        "sequence": moved.c.event_sequence,
        "created_at": db_now(),
        "level": bindparam("event_level", type_=EVENTS.c.level.type),
        "type": word("status"),
        "message": message,
        "data": bindparam("event_data", type_=EVENTS.c.data.type),
        "fence": moved.c.fence,
    }
    return insert(EVENTS).from_select(list(columns), select(*columns.values())).cte("told")


def _claim_telling(eligible: Select[str]) -> Select[Any]:
    moved = _claiming(eligible).cte("moved")
    parts = (word("Attempt "), moved.c.attempt, word(" started on "), moved.c.lease_owner, word("."))
    claimed = (moved.c[column.name] for column in COLUMNS)
    return select(*claimed).add_cte(_told(moved, func.concat(*parts)))


CLAIM_TELLING = _claim_telling(_ELIGIBLE_ON_POSTGRESQL)
"""`CLAIM` that also stores the history entry."""
CLAIM_WITHIN_LIMIT_TELLING = _claim_telling(_ELIGIBLE_ON_POSTGRESQL.where(_WITHIN_LIMIT))
