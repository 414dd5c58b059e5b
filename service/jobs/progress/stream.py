"""Live streams of jobs: one poller per process reads for all of them, each stream keeps its place.

Boundary: asyncio and rows; HTTP's framing is `endpoints_series.py`'s. A stream holds no database
connection: history is read in short transactions, what is new arrives from the poller. Event numbers of a
job have no gaps, so a stream that missed something notices and reads it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import TERMINAL, JobState
from service.jobs.progress import news
from service.platform.db import Database
from service.platform.tables.core import JobEvent
from service.web.auth import usable_keys

log = structlog.get_logger()

POLL_SECONDS = 0.5
PING_SECONDS = 15.0
KEY_SECONDS = 2.0
"""So often it is asked whether the streams' keys are still good."""
PAGE_ROWS = 500
INBOX_UPDATES = 16
IDS_PER_QUERY = 500


@dataclass(frozen=True)
class Update:
    """What the poller saw of a job: its newest event number, its state, and the rows since last time."""

    latest: int
    state: JobState
    rows: Sequence[JobEvent] = ()

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


NOTHING = Update(-1, JobState.RUNNING)
"""No news for so long that a ping is due."""


@dataclass(eq=False)
class Watcher:
    """One open stream's inbox. What does not fit is not lost: the stream reads it from the database."""

    job_id: str
    key_id: str
    """Of the API key that opened the stream."""
    inbox: asyncio.Queue[Update | None] = field(default_factory=lambda: asyncio.Queue(INBOX_UPDATES))
    """None: the service stops."""
    told: int = -1
    """Newest event number that was put into the inbox."""
    is_ended: bool = False

    def tell(self, update: Update) -> None:
        if update.latest > self.told and not self.inbox.full():
            self.inbox.put_nowait(update)
            self.told = update.latest

    def end(self) -> None:
        self.is_ended = True
        if self.inbox.full():
            self.inbox.get_nowait()
        self.inbox.put_nowait(None)


class Feed:
    """The process's one poller and the streams it feeds. Used inside one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: dict[str, set[Watcher]] = {}
        self._seen: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def num_watchers(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    async def rows(self, job_id: str, after: int, key_id: str) -> AsyncIterator[JobEvent | None]:
        """The job's events after number `after`, then live ones up to its terminal one; None: a ping.

        Ends when the job is over and all was told, when the key is no longer good, or when the service
        stops.
        """
        with self._watching(job_id, key_id) as watcher:
            update: Update | None = await run_in_threadpool(self._read, job_id, after)
            while update is not None and not watcher.is_ended:
                if update is NOTHING:
                    yield None
                for row in update.rows:
                    if watcher.is_ended:
                        return
                    if row.sequence == after + 1:
                        after = row.sequence
                        yield row
                if after < update.latest:
                    update = await run_in_threadpool(self._read, job_id, after)
                elif update.is_terminal:
                    return
                else:
                    update = await _heard(watcher)

    def _read(self, job_id: str, after: int) -> Update:
        """A page of history and where the history ends, seen at one moment."""
        fault_point("stream.read")
        with self._database.reading() as session:
            latest, state = news.stream_heads(session, [job_id]).get(job_id, (0, JobState.CANCELLED))
            rows = news.events_after(session, job_id, after, PAGE_ROWS)
            return Update(latest, state, rows) if rows else Update(after, state)

    @contextlib.contextmanager
    def _watching(self, job_id: str, key_id: str) -> Iterator[Watcher]:
        watcher = Watcher(job_id, key_id)
        self._watchers.setdefault(job_id, set()).add(watcher)
        if self._task is None or self._task.done():
            # for all streams: its lines are not about the request that opened the first one
            self._task = asyncio.create_task(self._poll(), context=contextvars.Context())
        try:
            yield watcher
        finally:
            self._watchers[job_id].discard(watcher)
            if not self._watchers[job_id]:
                del self._watchers[job_id]
                self._seen.pop(job_id, None)

    async def _poll(self) -> None:
        """Runs while somebody watches; were it to break, the streams end and their clients come again."""
        checked_at = time.monotonic()
        try:
            while self._watchers:
                await asyncio.sleep(POLL_SECONDS)
                try:
                    await self._tell_news()
                    if time.monotonic() - checked_at >= KEY_SECONDS:
                        await self._end_keyless()
                        checked_at = time.monotonic()
                except SQLAlchemyError as error:
                    log.warning("streams wait for the database", error=type(error).__name__)
        finally:
            self.stop()

    async def _tell_news(self) -> None:
        seen = {job_id: self._seen.get(job_id) for job_id in self._watchers}
        updates = await run_in_threadpool(self._new, seen)
        for job_id, update in updates.items():
            watchers = self._watchers.get(job_id)
            if watchers is None:
                continue
            self._seen[job_id] = update.latest
            for watcher in watchers:
                watcher.tell(update)

    async def _end_keyless(self) -> None:
        """Ends the streams whose key was revoked or has expired since they were opened."""
        open_ = [watcher for watchers in self._watchers.values() for watcher in watchers]
        usable = await run_in_threadpool(self._usable, sorted({watcher.key_id for watcher in open_}))
        for watcher in open_:
            if watcher.key_id not in usable:
                watcher.end()

    def _usable(self, key_ids: list[str]) -> set[str]:
        found: set[str] = set()
        with self._database.reading() as session:
            for ids in _portions(key_ids):
                found |= usable_keys(session, ids)
        return found

    def _new(self, seen: dict[str, int | None]) -> dict[str, Update]:
        """What has happened to the watched jobs; a job that is seen for the first time gives no rows."""
        found: dict[str, Update] = {}
        with self._database.reading() as session:
            for ids in _portions(list(seen)):
                heads = news.stream_heads(session, ids)
                behind = {
                    job_id: last
                    for job_id, (latest, _) in heads.items()
                    if (last := seen[job_id]) is not None and last < latest
                }
                rows = news.new_events(session, behind, PAGE_ROWS) if behind else {}
                found |= {
                    job_id: Update(latest, state, rows.get(job_id, ()))
                    for job_id, (latest, state) in heads.items()
                }
        return found

    def stop(self) -> None:
        """Ends all streams, so that the server need not wait for them."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.end()


def _portions(ids: list[str]) -> Iterator[list[str]]:
    """Lists that one query takes."""
    for start in range(0, len(ids), IDS_PER_QUERY):
        yield ids[start : start + IDS_PER_QUERY]


async def _heard(watcher: Watcher) -> Update | None:
    try:
        return await asyncio.wait_for(watcher.inbox.get(), PING_SECONDS)
    except TimeoutError:
        return NOTHING


class Stoppable(Protocol):
    """What keeps answers open."""

    def stop(self) -> None: ...


def stop_on_signals(feed: Stoppable) -> None:
    """Ends the streams when the process is asked to stop: a server waits for open answers first.

    Our handler calls the one that was there (the server's). Outside of the main thread there are no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before: Any = signal.getsignal(number)

        def handle(received: int, frame: FrameType | None, before: Any = before) -> None:
            loop.call_soon_threadsafe(feed.stop)
            if callable(before):
                before(received, frame)

        signal.signal(number, handle)
