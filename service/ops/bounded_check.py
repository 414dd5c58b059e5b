"""Runs a check that may hang, with a time limit for each caller.

If a database accepts connections but never responds, each check would block a thread of the pool. Here at
most one thread, outside the pool, waits for it.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
TIMEOUT_SECONDS = 2.0


class BoundedCheck(Generic[T]):
    """Used inside one event loop; concurrent callers share one run of the check."""

    def __init__(self, check: Callable[[], T], fallback: T) -> None:
        self._check = check
        self._fallback = fallback
        self._running: Future[T] | None = None

    async def result(self) -> T:
        """The check's result, or the fallback if it takes too long."""
        if self._running is None or self._running.done():
            self._running = Future()
            threading.Thread(target=self._run, args=(self._running,), name="check", daemon=True).start()
        waiting = asyncio.wrap_future(self._running)
        done, _ = await asyncio.wait({waiting}, timeout=TIMEOUT_SECONDS)
        return waiting.result() if done else self._fallback

    def _run(self, future: Future[T]) -> None:
        try:
            result = self._check()
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            future.set_exception(error)
        else:
            future.set_result(result)
