"""One thread that answers all open requests of a model in turn, one token of each.

Boundary: no torch and no HTTP; `answering.py` computes, `http_app.py` sends.
"""

import asyncio
import queue
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from grpo_engine.chat.protocol import Answer, Generate, Refused

REPORT_SECONDS = 1.0


class Model(Protocol):
    def ready(self) -> AbstractContextManager[None]:
        """Answers are made inside this block."""

    def answer(self, command: Generate) -> Iterator[Answer]:
        """The answer piece by piece, the last one with its usage. Raises Refused."""


@dataclass(eq=False)
class OpenRequest:
    """One open request."""

    answers: Iterator[Answer]
    deliver: Callable[[Answer | Refused], object]
    is_cancelled: bool = False

    def take(self) -> bool:
        """Deliver the next part of the answer, or the error that ends it. Returns whether it was the last."""
        try:
            answer = next(self.answers)
        except Refused as refused:
            self.deliver(refused)
            return True
        except Exception as error:  # noqa: BLE001 - reported, and the other requests continue
            # Without the error's text, which may quote the prompt.
            print("".join(traceback.format_tb(error.__traceback__)), type(error).__name__, file=sys.stderr)
            self.deliver(Refused("engine_error", "The answer was interrupted by an internal error."))
            return True
        if answer.pieces or answer.usage:
            self.deliver(answer)
        return answer.usage is not None


class OpenRequests:
    """The requests to one model. `report` gets the number of open ones (`protocol.Working`)."""

    def __init__(self, model: Model, report: Callable[[int], object]) -> None:
        self._model = model
        self._report = report
        self._reported = (0, monotonic())
        self._coming: queue.SimpleQueue[OpenRequest | None] = queue.SimpleQueue()

    async def answer(self, request: Generate) -> AsyncGenerator[Answer]:
        """The answer's parts as they are made. Raises Refused. Closing this generator cancels the request."""
        inbox: asyncio.Queue[Answer | Refused] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(part: Answer | Refused) -> None:
            loop.call_soon_threadsafe(inbox.put_nowait, part)

        opened = OpenRequest(self._model.answer(request), deliver)
        self._coming.put(opened)
        try:
            answer = Answer()
            while answer.usage is None:
                part = await inbox.get()
                if isinstance(part, Refused):
                    raise part
                answer = part
                yield answer
        finally:
            opened.is_cancelled = True

    def stop(self) -> None:
        self._coming.put(None)

    def run(self) -> None:
        """Answer in this thread until `stop` is called."""
        running: list[OpenRequest] = []
        with self._model.ready():
            while True:
                while not running or not self._coming.empty():
                    self._note(len(running))
                    request = self._coming.get()
                    if request is None:
                        return
                    running.append(request)
                self._note(len(running))
                running = [request for request in running if not (request.is_cancelled or request.take())]

    def _note(self, num_open: int) -> None:
        """Report the number of open requests if it has changed, or after a second."""
        now = monotonic()
        if num_open != self._reported[0] or now - self._reported[1] > REPORT_SECONDS:
            self._reported = (num_open, now)
            self._report(num_open)
