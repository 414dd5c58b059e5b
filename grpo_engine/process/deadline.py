"""The deadline of the request that this process answers; its parent kills it a little later."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class RequestDeadline:
    seconds: float
    """Whole time of the request."""
    ends_at: float
    """On the monotonic clock."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())


_current: ContextVar[RequestDeadline | None] = ContextVar("deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The block answers a request that has this time from now."""
    token = _current.set(RequestDeadline(seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> RequestDeadline | None:
    """The deadline of the request; None if nothing limits it."""
    return _current.get()
