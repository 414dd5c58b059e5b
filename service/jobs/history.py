"""A job's append-only history: what its events endpoint and its live stream show.

Boundary: allocates numbers and inserts rows inside the caller's transaction; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from service.jobs.states import PUBLIC, JobState
from service.models import Job, JobEvent


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


def append(session: Session, job_id: str, *entries: Entry) -> int:
    """Number and store `entries` in order; answers the last number. One transaction with what they tell."""
    last = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(event_sequence=Job.event_sequence + len(entries))
        .returning(Job.event_sequence)
        .execution_options(synchronize_session=False)
    ).scalar_one()
    first = last - len(entries) + 1
    rows = [
        {"job_id": job_id, "sequence": number, "type": entry.type, "message": entry.message}
        | {"level": entry.level, "data": entry.data, "fence": entry.fence}
        for number, entry in enumerate(entries, start=first)
    ]
    if rows:
        session.execute(insert(JobEvent), rows)
    return last
