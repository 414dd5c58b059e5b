"""Deadlines, such as that of the request that this process answers; its parent kills it a little later."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Deadline:
    """A moment on the monotonic clock, `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_at = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())


_UNLIMITED = Deadline(math.inf)
_current: ContextVar[Deadline] = ContextVar("deadline", default=_UNLIMITED)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Inside the block, the current request has this time limit, from now."""
    token = _current.set(Deadline(seconds))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Deadline:
    """The deadline of the request; infinite if nothing limits it."""
    return _current.get()
