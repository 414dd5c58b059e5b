"""Live streams of jobs. Each has a position in a job's history and gets new events from the process's feed.

Event numbers of a job have no gaps, so a stream that missed events detects it and reads them itself, in a
short transaction. Access is checked when a stream is opened (`jobs/api/endpoints_series.py`).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import BigInteger, cast, func, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import TERMINAL, JobState
from service.platform.db import Database, is_postgresql
from service.platform.feed import Ending, Feed, Subscriber
from service.platform.tables.core import Job, JobEvent
from service.web.auth import usable_keys

PING_SECONDS = 15.0
PAGE_ROWS = 500
INBOX_UPDATES = 16


@dataclass(frozen=True)
class JobUpdate:
    """A job's newest event number, its state, and its new rows, as the feed read them."""

    latest: int
    state: JobState
    rows: Sequence[JobEvent] = ()

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


PING = JobUpdate(-1, JobState.RUNNING)
"""Sent after PING_SECONDS without an update."""


@dataclass(eq=False)
class JobStream(Subscriber[JobUpdate]):
    """One open stream's inbox. If an update does not fit, the stream reads its rows itself."""

    topic: str
    """The job's id."""
    key_id: str
    inbox: asyncio.Queue[JobUpdate | None] = field(default_factory=lambda: asyncio.Queue(INBOX_UPDATES))
    """Updates to send; None ends the stream."""
    delivered: int = -1
    """Newest event number that was put into the inbox."""
    is_ended: bool = False

    def deliver(self, update: JobUpdate) -> None:
        if update.latest > self.delivered and not self.inbox.full():
            self.inbox.put_nowait(update)
            self.delivered = update.latest

    def end(self, ending: Ending) -> None:
        self.is_ended = True
        if self.inbox.full():
            self.inbox.get_nowait()
        self.inbox.put_nowait(None)


class JobFeed(Feed[JobStream, JobUpdate]):
    """The process's poller of jobs."""

    poll_seconds = 0.5

    def __init__(self, database: Database) -> None:
        super().__init__(database, usable_keys)

    async def rows(self, job_id: str, after: int, key_id: str) -> AsyncGenerator[JobEvent | None]:
        """The job's events after number `after`, then live ones up to its terminal one; None: a ping.

        Ends when the job is over and all its events were sent, when the key is no longer valid, or when the
        service stops.
        """
        stream = JobStream(job_id, key_id)
        self.subscribe(stream)
        try:
            update: JobUpdate | None = await run_in_threadpool(self._page, job_id, after)
            while update is not None and not stream.is_ended:
                if update is PING:
                    yield None
                for row in update.rows:
                    if stream.is_ended:
                        return
                    if row.sequence == after + 1:
                        after = row.sequence
                        yield row
                if after < update.latest:
                    update = await run_in_threadpool(self._page, job_id, after)
                elif update.is_terminal:
                    return
                else:
                    update = await _next_update(stream)
        finally:
            self.unsubscribe(stream)

    def _page(self, job_id: str, after: int) -> JobUpdate:
        """A page of history and the newest event number, from one snapshot."""
        fault_point("stream.read")
        with self._database.reading() as session:
            latest, state = stream_heads(session, [job_id]).get(job_id, (0, JobState.CANCELLED))
            query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.sequence > after)
            rows = session.scalars(query.order_by(JobEvent.sequence).limit(PAGE_ROWS)).all()
            return JobUpdate(latest, state, rows) if rows else JobUpdate(after, state)

    def read(self, session: Session, seen: Mapping[str, int | None]) -> dict[str, JobUpdate]:
        """Each job's update, without rows at the job's first read, when streams read their own pages.

        A deleted job gets a number above its last one, so that its streams look for a new row and then end.
        """
        heads = stream_heads(session, list(seen))
        gone = {job_id: (last or 0) + 1 for job_id, last in seen.items() if job_id not in heads}
        behind = {
            job_id: last
            for job_id, (latest, _) in heads.items()
            if (last := seen[job_id]) is not None and last < latest
        }
        rows = new_events(session, behind, PAGE_ROWS) if behind else {}
        return {
            job_id: JobUpdate(latest, state, rows.get(job_id, ()))
            for job_id, (latest, state) in heads.items()
        } | {job_id: JobUpdate(latest, JobState.CANCELLED) for job_id, latest in gone.items()}


async def _next_update(stream: JobStream) -> JobUpdate | None:
    try:
        return await asyncio.wait_for(stream.inbox.get(), PING_SECONDS)
    except TimeoutError:
        return PING


def stream_heads(session: Session, job_ids: Sequence[str]) -> dict[str, tuple[int, JobState]]:
    """Id → newest event number and state."""
    rows = session.execute(select(Job.id, Job.event_sequence, Job.state).where(Job.id.in_(job_ids)))
    return {job_id: (sequence, JobState(state)) for job_id, sequence, state in rows}


def new_events(session: Session, seen: Mapping[str, int], limit: int) -> dict[str, list[JobEvent]]:
    """Each job's next events after the given number, at most `limit` of a job: one query for all jobs.

    The mapping is one parameter, so the statement's text stays the same.
    """
    on_postgresql = func.jsonb_each_text(cast(dict(seen), JSONB))
    each = on_postgresql if is_postgresql(session) else func.json_each(json.dumps(seen))
    pairs = each.table_valued("key", "value")
    last = cast(pairs.c.value, BigInteger)
    query = select(JobEvent).join(pairs, pairs.c.key == JobEvent.job_id)
    query = query.where(JobEvent.sequence > last, JobEvent.sequence <= last + limit)
    found: dict[str, list[JobEvent]] = {}
    for row in session.scalars(query.order_by(JobEvent.job_id, JobEvent.sequence)):
        found.setdefault(row.job_id, []).append(row)
    return found
