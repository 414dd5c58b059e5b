"""One poller per process for many open responses: reads updates once and delivers them to all subscribers.

A subscriber holds no database connection. It names a topic (a job, a request to a model) and the API key that
it was opened with; when the key is revoked or expires, the subscriber is ended.
Boundary: asyncio and polling; the folders that use it define queries and updates.
"""

import asyncio
import contextvars
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from types import FrameType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.platform.db import Database, reason_of

log = structlog.get_logger()

KEY_SECONDS = 2.0
"""Time between two checks of the subscribers' API keys."""
TOPICS_PER_QUERY = 500
CLOSE_SECONDS = 2.0
"""Longest time for which a stopping service waits for a poller that is reading the database."""

UsableKeys = Callable[[Session, Sequence[str]], set[str]]
"""A function that returns those of the given keys that are neither revoked nor expired."""


class Ending(Enum):
    """The reason why the feed ends a subscriber."""

    KEY_INVALID = auto()
    SERVICE_STOPPING = auto()


class Positioned(Protocol):
    """The result of one poll for a topic."""

    @property
    def latest(self) -> int:
        """Number of the topic's newest row; the next poll starts after it."""


Update = TypeVar("Update", bound=Positioned)


class Subscriber(ABC, Generic[Update]):
    """One open response."""

    topic: str
    key_id: str
    """Id of the API key that opened it."""

    @abstractmethod
    def deliver(self, update: Update) -> None:
        """Take an update of the topic; called in the event loop, so it must not wait."""

    @abstractmethod
    def end(self, ending: Ending) -> None:
        """Take note that nothing more will be delivered."""


AnySubscriber = TypeVar("AnySubscriber", bound=Subscriber[Any])


class Feed(ABC, Generic[AnySubscriber, Update]):
    """The process's poller for one kind of topics. Used inside one event loop."""

    poll_seconds: ClassVar[float]

    def __init__(self, database: Database, usable_keys: UsableKeys) -> None:
        self._database = database
        self._usable_keys = usable_keys
        self._subscribers: dict[str, set[AnySubscriber]] = {}
        self._latest: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def read(self, session: Session, seen: Mapping[str, int | None]) -> Mapping[str, Update]:
        """Each topic's rows after the number in `seen`, which is None at the first read of a topic."""

    @property
    def num_subscribers(self) -> int:
        return len(self._all())

    def subscribe(self, subscriber: AnySubscriber) -> None:
        """Deliver to it from now on. The caller must unsubscribe it."""
        self._subscribers.setdefault(subscriber.topic, set()).add(subscriber)
        self._run()

    def unsubscribe(self, subscriber: AnySubscriber) -> None:
        topic = subscriber.topic
        others = self._subscribers.get(topic, set()) - {subscriber}
        if others:
            self._subscribers[topic] = others
        elif self._subscribers.pop(topic, None) is not None:
            self._latest.pop(topic, None)

    def stop(self) -> None:
        """End all subscribers, so that the server need not wait for them."""
        for subscriber in self._all():
            subscriber.end(Ending.SERVICE_STOPPING)

    async def close(self) -> None:
        """Wait for the poller; otherwise its thread could use a connection after the database is closed."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    def _all(self) -> list[AnySubscriber]:
        return [one for subscribers in self._subscribers.values() for one in subscribers]

    def _run(self) -> None:
        if self._task is None or self._task.done():
            # an empty context, because the poller's log lines do not belong to the first request
            self._task = asyncio.create_task(self._poll(), context=contextvars.Context())

    async def _poll(self) -> None:
        """Run while there are subscribers. If it fails, they are ended and their clients reconnect."""
        checked_at = time.monotonic()
        try:
            while self._subscribers:
                await asyncio.sleep(self.poll_seconds)
                try:
                    await self._deliver_updates()
                    if time.monotonic() - checked_at >= KEY_SECONDS:
                        await self._end_keyless()
                        checked_at = time.monotonic()
                except SQLAlchemyError as error:
                    log.warning("feed waits for the database", error=reason_of(error))
        finally:
            self.stop()

    async def _deliver_updates(self) -> None:
        seen = {topic: self._latest.get(topic) for topic in self._subscribers}
        for topic, update in (await run_in_threadpool(self._read, seen)).items():
            subscribers = self._subscribers.get(topic)
            if subscribers:
                self._latest[topic] = update.latest
                for subscriber in subscribers:
                    subscriber.deliver(update)

    def _read(self, seen: Mapping[str, int | None]) -> dict[str, Update]:
        found: dict[str, Update] = {}
        with self._database.reading() as session:
            rest = iter(seen.items())
            while portion := dict(islice(rest, TOPICS_PER_QUERY)):
                found |= self.read(session, portion)
        return found

    async def _end_keyless(self) -> None:
        """End the subscribers whose key was revoked or has expired since they were opened."""
        subscribers = self._all()
        usable = await run_in_threadpool(self._usable, sorted({one.key_id for one in subscribers}))
        for subscriber in subscribers:
            if subscriber.key_id not in usable:
                subscriber.end(Ending.KEY_INVALID)

    def _usable(self, key_ids: list[str]) -> set[str]:
        with self._database.reading() as session:
            return self._usable_keys(session, key_ids)


async def notice_lost_connection() -> None:
    """Await between two pieces of a response that are sent without another wait. Otherwise the loop does not
    handle the loss of the connection before all are sent, and asyncio logs each one as a failure."""
    await asyncio.sleep(0)


def stop_on_signals(feed: Feed[Any, Any]) -> None:
    """End the subscribers when the process receives a stop signal, because a server waits for open responses.

    The new handler calls the previous one (the server's). Outside the main thread there are no signals.
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
