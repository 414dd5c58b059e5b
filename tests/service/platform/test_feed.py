"""The poller of live streams, where neither jobs nor models show it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.platform.db import Database
from service.platform.feed import Ending, Feed, Subscriber

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclass(frozen=True)
class Number:
    latest: int


@dataclass(eq=False)
class Listener(Subscriber[Number]):
    topic: str = "topic"
    key_id: str = "key"
    received: asyncio.Queue[int | Ending] = field(default_factory=asyncio.Queue)

    def deliver(self, update: Number) -> None:
        self.received.put_nowait(update.latest)

    def end(self, ending: Ending) -> None:
        self.received.put_nowait(ending)


class Numbers(Feed[Listener, Number]):
    poll_seconds = 0.01

    def __init__(self, database: Database, next_number: Callable[[int | None], int]) -> None:
        super().__init__(database, lambda _session, keys: set(keys))
        self.next_number = next_number

    def read(self, session: Session, seen: Mapping[str, int | None]) -> dict[str, Number]:
        return {topic: Number(self.next_number(last)) for topic, last in seen.items()}


async def received(feed: Numbers, count: int) -> list[int | Ending]:
    listener = Listener()
    feed.subscribe(listener)
    found = [await asyncio.wait_for(listener.received.get(), 10) for _ in range(count)]
    feed.unsubscribe(listener)
    return found


def test_each_read_begins_after_the_newest_number_of_the_last_one(database: Database) -> None:
    feed = Numbers(database, lambda last: 7 if last is None else last + 1)
    assert asyncio.run(received(feed, 3)) == [7, 8, 9]


def test_an_outage_of_the_database_delays_updates(database: Database) -> None:
    answers = iter([OperationalError("SELECT", {}, Exception()), 5])

    def next_number(_last: int | None) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert asyncio.run(received(Numbers(database, next_number), 1)) == [5]


def test_a_feed_that_fails_ends_its_subscribers(database: Database) -> None:
    def fail(_last: int | None) -> int:
        raise LookupError

    assert asyncio.run(received(Numbers(database, fail), 1)) == [Ending.SERVICE_STOPPING]
