"""Pretended streams and events: which work is known to be over when other work begins.

Each stream counts its operations and remembers how far every other one is known to be; only events and waits
of the host add to that. An operation that uses a tensor without knowing of its last writer (or, to write it,
of its readers) is a race.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tests.engine.device.seen import Seen, place, storage_of

Known = dict["Stream", int]
_names = itertools.count(1)


def merge(known: Known, other: Known) -> None:
    for stream, count in other.items():
        known[stream] = max(count, known.get(stream, 0))


class Stream:
    def __init__(self, device: Any = None, name: str = "", **_: Any) -> None:
        self.name = name or f"stream {next(_names)}"
        self.count = 0
        self.known: Known = {}

    def wait_stream(self, other: Stream) -> None:
        merge(self.known, {**other.known, other: other.count})

    def wait_event(self, event: Event) -> None:
        merge(self.known, event.known)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        merge(_thread().known, {**self.known, self: self.count})


class Event:
    def __init__(self, **_: Any) -> None:
        self.known: Known = {}

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current()
        self.known = {**stream.known, stream: stream.count}

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current()).wait_event(self)

    def synchronize(self) -> None:
        merge(_thread().known, self.known)


DEFAULT = Stream(name="default")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stream = DEFAULT
        self.known: Known = {}


_this = _Thread()


def _thread() -> _Thread:
    return _this


def current(device: Any = None) -> Stream:
    return _this.stream


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    before, _this.stream = _this.stream, stream or _this.stream
    try:
        yield
    finally:
        _this.stream = before


def waited() -> None:
    """The host waited for this thread's stream."""
    _this.stream.synchronize()


def used(seen: Seen, operation: str, read: list[Tensor], written: list[Tensor]) -> None:
    """Record an operation on this thread's stream."""
    stream = _this.stream
    merge(stream.known, _this.known)
    stream.count += 1
    seen.streams.setdefault(threading.current_thread().name, set()).add(stream.name)
    for tensor in read:
        storage = storage_of(tensor)
        _check(seen, stream, operation, getattr(storage, "writers", None))
        _remember(storage, "readers", stream)
    for tensor in written:
        storage = storage_of(tensor)
        _check(seen, stream, operation, getattr(storage, "writers", None))
        _check(seen, stream, operation, getattr(storage, "readers", None))
        _remember(storage, "writers", stream)


def _check(seen: Seen, stream: Stream, operation: str, uses: Known | None) -> None:
    for other, count in (uses or {}).items():
        if other is not stream and stream.known.get(other, 0) < count:
            seen.races[f"{place()} {operation}: {stream.name} does not wait for {other.name}"] += 1


def _remember(storage: Any, kind: str, stream: Stream) -> None:
    if storage is None:
        return
    if not hasattr(storage, kind):
        setattr(storage, kind, {})
    getattr(storage, kind)[stream] = stream.count
