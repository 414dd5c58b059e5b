"""A job's append-only history: what its events endpoint and its live stream show.

Boundary: allocates numbers and inserts rows inside the caller's transaction; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Update, update
from sqlalchemy.orm import Session

from service.jobs.model.states import PUBLIC, JobState
from service.jobs.store import statements
from service.platform.db import Executor, is_postgresql
from service.platform.tables.core import Job


@dataclass(frozen=True)
class Entry:
    """One line of the history. `level` is `info`, `warn` or `error`."""

    type: str
    """`message`, `metrics` or `status`."""
    message: str
    level: str = "info"
    data: dict[str, Any] = field(default_factory=dict)
    fence: int = 0


def status(state: JobState, message: str, *, phase: str, fence: int, level: str = "info") -> Entry:
    """The entry of a state change: the public status beside the inner state."""
    data = {"status": PUBLIC[state].value, "state": state.value, "phase": phase}
    return Entry("status", message, level, data, fence)


def is_told_by_statement(session: Executor) -> bool:
    """Whether a change of a row and its entry can be one statement: not on SQLite."""
    return is_postgresql(session)


def parameters(entry: Entry) -> dict[str, Any]:
    """The entry for `statements.telling`; its fence is the row's."""
    return {"event_message": entry.message, "event_level": entry.level, "event_data": entry.data}


def move(
    session: Executor, moving: Update, given: dict[str, Any], entry: Entry, announced: dict[str, Any]
) -> bool:
    """Run a `statements.move` and store what it means. False: there was no such row; nothing is stored.

    `announced`: the event for webhooks (`webhooks.events.parameters`), empty where there is none.
    """
    if is_told_by_statement(session):
        told = statements.telling(moving, announced=bool(announced))
        return session.execute(told, given | parameters(entry) | announced).one_or_none() is not None
    moved = session.execute(moving, given).one_or_none()
    if moved is not None:
        store(session, moved.id, moved.event_sequence, entry)
        if announced:
            of_job = {"of_tenant": moved.tenant, "job_id": moved.id}
            session.execute(statements.ANNOUNCE, announced | of_job)
    return moved is not None


def append(session: Session, job_id: str, *entries: Entry) -> int:
    """Number and store `entries` in order; answers the last number. One transaction with what they tell."""
    last = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(event_sequence=Job.event_sequence + len(entries))
        .returning(Job.event_sequence)
        .execution_options(synchronize_session=False)
    ).scalar_one()
    store(session, job_id, last, *entries)
    return last


def store(session: Executor, job_id: str, last: int, *entries: Entry) -> None:
    """Store `entries` in order up to the number `last`, which the caller has moved the job to."""
    first = last - len(entries) + 1
    rows = [
        {"job_id": job_id, "sequence": number, "type": entry.type, "message": entry.message}
        | {"level": entry.level, "data": entry.data, "fence": entry.fence}
        for number, entry in enumerate(entries, start=first)
    ]
    if rows:
        session.execute(statements.ADD_EVENTS, rows[0] if len(rows) == 1 else rows)
