"""Queries of live streams, few for many jobs: where histories end, and the events after a number.

Boundary: SELECTs; access was checked when the stream was opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import BigInteger, TableValuedAlias, cast, func, select, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session, aliased

from service.jobs.model.states import JobState
from service.platform.tables.core import Job, JobEvent


def events_after(session: Session, job_id: str, after: int, limit: int) -> list[JobEvent]:
    """Oldest first, for a stream whose reader was checked when it was opened."""
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.sequence > after)
    return list(session.scalars(query.order_by(JobEvent.sequence).limit(limit)))


def new_events(session: Session, seen: Mapping[str, int], limit: int) -> dict[str, list[JobEvent]]:
    """Each job's events after the number that was seen, oldest first, `limit` of a job: one query for all."""
    pairs = _each(session, seen)
    last = cast(pairs.c.value, BigInteger)
    if session.get_bind().dialect.name == "postgresql":
        newer = select(JobEvent).where(JobEvent.job_id == pairs.c.key, JobEvent.sequence > last)
        event = aliased(JobEvent, newer.order_by(JobEvent.sequence).limit(limit).lateral())
        query = select(event).select_from(pairs).join(event, true()).order_by(event.job_id, event.sequence)
    else:
        query = select(JobEvent).join(pairs, pairs.c.key == JobEvent.job_id)
        query = query.where(JobEvent.sequence > last, JobEvent.sequence <= last + limit)
        query = query.order_by(JobEvent.job_id, JobEvent.sequence)
    found: dict[str, list[JobEvent]] = {}
    for row in session.scalars(query):
        found.setdefault(row.job_id, []).append(row)
    return found


def _each(session: Session, pairs: Mapping[str, int]) -> TableValuedAlias:
    """A mapping as rows of `key` and `value`, in one parameter: the statement's text stays the same."""
    if session.get_bind().dialect.name == "postgresql":
        rows = func.jsonb_each_text(cast(dict(pairs), JSONB))
    else:
        rows = func.json_each(json.dumps(pairs))
    return rows.table_valued("key", "value")


def stream_heads(session: Session, job_ids: Sequence[str]) -> dict[str, tuple[int, JobState]]:
    """Id → newest event number and state, for streams whose readers were checked."""
    rows = session.execute(select(Job.id, Job.event_sequence, Job.state).where(Job.id.in_(job_ids)))
    return {job_id: (sequence, JobState(state)) for job_id, sequence, state in rows}
