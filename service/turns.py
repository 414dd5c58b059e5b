"""Requests that hold a thread for long: few at a time, so that the others find one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import TooManyRequests

RETRY_SECONDS = 5


class Turns:
    """At most `limit` at once in this process."""

    def __init__(self, limit: int, doing: str) -> None:
        self._doing = doing
        """What is being done, for the refusal: `4 graders are being run`."""
        self._free = threading.BoundedSemaphore(limit)
        self._limit = limit

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises TooManyRequests where none is free."""
        if not self._free.acquire(blocking=False):
            raise TooManyRequests(
                f"{self._limit} {self._doing}, the limit here: try again.",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        try:
            yield
        finally:
            self._free.release()
