"""A job's append-only history: the rows behind its events endpoint and its live stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from service.jobs.model.states import PUBLIC, JobState
from service.platform.db import Executor
from service.platform.tables.core import Job, JobEvent

EVENTS = JobEvent.metadata.tables["job_events"]


@dataclass(frozen=True)
class HistoryEntry:
    type: str
    """`message`, `metrics` or `status`."""
    message: str
    level: str = "info"
    """`info`, `warn` or `error`."""
    data: dict[str, Any] = field(default_factory=dict)
    fence: int = 0


def status(
    state: JobState,
    message: str,
    fence: int = 0,
    level: str = "info",
    *,
    phase: str | None = None,
    evidence: Sequence[str] = (),
) -> HistoryEntry:
    """The entry of a state change, with the public status and the internal state.

    `phase`: phase of a running job, by default `preparing`; in other states the phase is the state's name.
    `evidence`: evidence of an attempt that failed.
    """
    phase = phase or ("preparing" if state is JobState.RUNNING else state.value)
    data: dict[str, Any] = {"status": PUBLIC[state].value, "state": state.value, "phase": phase}
    if evidence:
        data["evidence"] = list(evidence)
    return HistoryEntry("status", message, level, data, fence)


def append(session: Session, job_id: str, *entries: HistoryEntry) -> int:
    """Number and store `entries` in order, and return the last number."""
    last = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(event_sequence=Job.event_sequence + len(entries))
        .returning(Job.event_sequence)
        .execution_options(synchronize_session=False)
    ).scalar_one()
    store(session, job_id, last, *entries)
    return last


def store(session: Executor, job_id: str, last: int, *entries: HistoryEntry) -> None:
    """Store `entries` in order. The last one gets the number `last`, which the job's row already has."""
    numbered = enumerate(entries, start=last - len(entries) + 1)
    rows = [{"job_id": job_id, "sequence": number, **vars(entry)} for number, entry in numbered]
    if rows:
        session.execute(insert(EVENTS), rows)


def newest_failure(session: Session, job_id: str) -> JobEvent | None:
    """The entry of the job's last attempt that counted as a failure."""
    entries = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.type == "status")
    newest = entries.where(JobEvent.level == "warn").order_by(JobEvent.sequence.desc()).limit(1)
    return session.scalars(newest).one_or_none()
