"""State changes of a job: one guarded UPDATE with its history entry and its webhook deliveries.

The row is locked before it moves, so that the choice of the next state and the UPDATE see the same row:
`FOR UPDATE` on PostgreSQL, `BEGIN IMMEDIATE` on SQLite. The UPDATE still names the fence and the old state.
Boundary: the callers (`queue.py`, `sweeping.py`) decide which state follows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    Boolean,
    ColumnElement,
    Select,
    and_,
    bindparam,
    literal_column,
    select,
    update,
)

from service.jobs.model import names
from service.jobs.model.states import HELD, TERMINAL, TRANSITIONS, JobState
from service.jobs.store import history, webhook_events
from service.platform.clock import db_now
from service.platform.db import Executor
from service.platform.leases import Leases
from service.platform.tables.core import Job

JOBS = Job.metadata.tables["jobs"]
MAX_BACKOFF_SECONDS = 300.0


class LockedJob(NamedTuple):
    """The columns that transitions depend on, of a locked row."""

    id: str
    tenant: str
    state: str
    fence: int
    attempt: int
    failures: int
    lease_owner: str | None


class WrongState(Exception):
    """The job's state does not allow the requested transition."""

    def __init__(self, current: JobState) -> None:
        super().__init__(f"the job is {current.value}")
        self.current = current


def is_in(table: str, *states: JobState) -> ColumnElement[bool]:
    """Condition on the column `state` of a table or an alias.

    The states are part of the statement's text: PostgreSQL uses a partial index in a generic plan only if the
    index's condition follows from constants.
    """
    words = ", ".join(repr(state.value) for state in sorted(states))
    return literal_column(f"{table}.state IN ({words})", Boolean())


IS_PROBE, IS_EXPORT = JOBS.c.probe.is_not(None), JOBS.c.export.is_not(None)
"""Conditions for rows of the queue that are not fine-tuning jobs."""
IS_JOB = and_(JOBS.c.probe.is_(None), JOBS.c.export.is_(None))
LEASES = Leases(JOBS, (JOBS.c.id,), JOBS.c.fence, JOBS.c.lease_expires_at, active=is_in("jobs", *HELD))


def holds(job_id: str | BindParameter[str], fence: int | BindParameter[int]) -> ColumnElement[bool]:
    """Condition under which the claim with this fence may still write."""
    return LEASES.is_held(job_id, number=fence)


def locked(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Query for rows of `LockedJob`; the caller adds the lock."""
    return select(*(JOBS.c[name] for name in LockedJob._fields)).where(*conditions)


# built once: building takes longer than running them
_LOCK_HELD = locked(holds(bindparam("job_id"), bindparam("held_fence"))).with_for_update()
_MOVE = (
    update(JOBS)
    .where(JOBS.c.id == bindparam("job_id"), JOBS.c.fence == bindparam("held_fence"))
    .where(JOBS.c.state == bindparam("from_state"))
    .values(event_sequence=JOBS.c.event_sequence + 1)
    .returning(
        JOBS.c.tenant, JOBS.c.fence, JOBS.c.event_sequence, webhook_events.has_endpoints(JOBS.c.tenant)
    )
)
"""Columns named in the parameters are set, too."""
_END = _MOVE.values(finished_at=db_now())
_REQUEUE = _MOVE.values(not_before=db_now() + bindparam("backoff_seconds"))


def lock_held(session: Executor, job_id: str, fence: int) -> LockedJob | None:
    """The row of a claim, locked until the transaction ends. None: the fence is stale."""
    row = session.execute(_LOCK_HELD, {"job_id": job_id, "held_fence": fence}).one_or_none()
    return None if row is None else LockedJob._make(row)


def move(
    session: Executor,
    job_id: str,
    held_fence: int,
    source: JobState,
    target: JobState,
    message: str,
    level: str = "info",
    evidence: Sequence[str] = (),
    **values: Any,
) -> bool:
    """Move a row from `source` to `target` and set the columns `values`. False: it was in another state.

    `backoff_seconds`: time until the next claim. Raises WrongState if the transition table does not allow it.
    """
    if target not in TRANSITIONS[source]:
        raise WrongState(source)
    statement = _END if target in TERMINAL else _REQUEUE if "backoff_seconds" in values else _MOVE
    if target not in HELD:
        values |= {"lease_owner": None, "lease_expires_at": None}
    guard = {"job_id": job_id, "held_fence": held_fence, "from_state": source.value}
    new = {"state": target.value, "phase": target.value}
    moved = session.execute(statement, guard | new | values).one_or_none()
    if moved is None:
        return False
    level = "error" if target is JobState.FAILED else level
    entry = history.status(target, message, moved.fence, level, evidence=evidence)
    history.store(session, job_id, moved.event_sequence, entry)
    if moved.has_endpoints and names.is_job(job_id):
        webhook_events.add_deliveries(session, moved.tenant, job_id, target)
    return True


def end_attempt(
    session: Executor,
    job: LockedJob,
    reason: str,
    max_failures: int | None,
    backoff_seconds: float,
    next_fence: int,
    evidence: tuple[str, ...] = (),
) -> JobState:
    """End an attempt without a result and return the new state. `max_failures`: None if it did not fail."""
    current = JobState(job.state)
    requested = {JobState.CANCELLING: JobState.CANCELLED, JobState.PAUSING: JobState.PAUSED}
    target = requested.get(current, JobState.QUEUED)
    values: dict[str, Any] = {"fence": next_fence}
    level = "info"
    if target is JobState.QUEUED and max_failures is not None:
        level = "warn"
        values["failures"] = job.failures + 1
        if job.failures + 1 >= max_failures:
            target = JobState.FAILED
            values["failure"] = _poisoned(reason, max_failures, evidence)
    if target is JobState.QUEUED:
        values["backoff_seconds"] = min(MAX_BACKOFF_SECONDS, backoff_seconds * 2.0**job.failures)
    move(session, job.id, job.fence, current, target, reason, level, evidence, **values)
    return target


def _poisoned(reason: str, attempts: int, evidence: tuple[str, ...]) -> dict[str, Any]:
    """The failure of a job whose engine ends repeatedly."""
    ended = "The attempt" if attempts == 1 else f"{attempts} attempts in a row"
    last = reason if attempts == 1 else f"The last: {reason}"
    return {
        "code": "poisoned",
        "message": f"{ended} ended without a new checkpoint. {last}",
        "hint": "Correct what the message names. If memory or time ran out, a smaller job or a lower "
        "checkpoint_interval may get further.",
        "evidence": list(evidence),
    }
