"""Results that one process computes once and reuses for a while."""

import threading
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class RecentResults(Generic[Result]):
    """The newest `max_entries` results by key, none older than `seconds`. Shared by all threads."""

    def __init__(self, seconds: float, max_entries: int) -> None:
        self._seconds, self._max_entries = seconds, max_entries
        self._found: dict[Hashable, tuple[float, Result]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Result | None:
        with self._lock:
            time_stored, result = self._found.get(key, (0.0, None))
        return result if time.monotonic() - time_stored < self._seconds else None

    def put(self, key: Hashable, result: Result) -> None:
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = (time.monotonic(), result)
            if len(self._found) > self._max_entries:
                del self._found[next(iter(self._found))]
