"""A question that may hang, asked so that the asker never does.

A database that accepts a connection and then says nothing would hold a thread of the pool for each question.
Here at most one thread waits for it, none of the pool's; everybody else gets an answer in time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 2.0


class Probe(Generic[T]):
    """Used inside one event loop."""

    def __init__(self, question: Callable[[], T], otherwise: T, seconds: float = PATIENCE_SECONDS) -> None:
        self._question = question
        self._otherwise = otherwise
        self._seconds = seconds
        self._asked: asyncio.Future[T] | None = None

    async def ask(self) -> T:
        """The answer, or `otherwise` where there is none in time. Who asks meanwhile shares the answer."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._run, args=(self._asked,), name="probe", daemon=True).start()
        done, _ = await asyncio.wait({self._asked}, timeout=self._seconds)
        return self._asked.result() if done else self._otherwise

    def _run(self, asked: asyncio.Future[T]) -> None:
        loop = asked.get_loop()
        try:
            answer = self._question()
        except Exception as error:  # noqa: BLE001 - it is raised again, where it was asked
            _tell(loop, asked.set_exception, error)
        else:
            _tell(loop, asked.set_result, answer)


def _tell(loop: asyncio.AbstractEventLoop, tell: Callable[..., None], what: object) -> None:
    try:
        loop.call_soon_threadsafe(tell, what)
    except RuntimeError:
        return  # the loop has ended meanwhile: nobody waits any more
