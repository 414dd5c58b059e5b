"""Waits for the answer to one request, within time limits, and turns a worker's refusal into an error."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import ClientDisconnect

from grpo_engine.serve.protocol import Answer, Piece, Refusal, Usage
from service.platform.errors import InvalidRequest, NotFound, ServiceError, Unauthorized, Unavailable
from service.platform.ids import new_id
from service.serving.feed import AnswerFeed, AnswerStream

CLAIM_SECONDS = 60.0
"""Maximum wait for a worker with free capacity."""
TOTAL_SECONDS = 600.0
"""Maximum time of an answer, including loading the model."""
SILENT_SECONDS = 15.0
"""Longest silence of a stream, because proxies close silent connections."""
CHECK_SECONDS = 0.5
"""Time between two checks of whether the client is still connected."""
GONE = {"model_not_found", "base_model_changed"}
"""Codes of refusals that apply to every worker."""
INVALID = {"context_length_exceeded", "invalid_messages", "empty_prompt"}
"""Codes of refusals caused by the request itself."""


class PendingAnswer:
    """A request that waits for its answer. Always `close` it, so that its worker stops."""

    def __init__(self, feed: AnswerFeed, prefix: str, key_id: str) -> None:
        self.id = new_id(prefix)
        self._feed = feed
        self._stream = AnswerStream(self.id, key_id)
        self._started_at = time.monotonic()
        self._first: Answer | None = None

    def close(self) -> None:
        self._feed.unsubscribe(self._stream)

    async def start(self, has_left: Callable[[], Awaitable[bool]]) -> None:
        """Wait up to SILENT_SECONDS for the first update; a refusal that arrives by then is an HTTP error.

        Raises ServiceError, and ClientDisconnect if the client disconnects.
        """
        self._feed.subscribe(self._stream)
        silent_until = time.monotonic() + SILENT_SECONDS
        while self._first is None and time.monotonic() < silent_until:
            self._first = await self._next(CHECK_SECONDS)
            if self._first is None and await has_left():
                raise ClientDisconnect
        if self._first is not None and self._first.refusal is not None:
            raise error_of(self._first.refusal)

    async def whole(self, has_left: Callable[[], Awaitable[bool]]) -> tuple[list[Piece], Usage]:
        """The complete answer. Raises ServiceError, and ClientDisconnect if the client disconnects."""
        pieces: list[Piece] = []
        async for update in self.updates(CHECK_SECONDS):
            if update is None and await has_left():
                raise ClientDisconnect
            if update is not None:
                pieces += update.pieces
                if update.usage is not None:
                    return pieces, update.usage
        raise AssertionError("unreachable: the last update has a usage")

    async def updates(self, silence_seconds: float = SILENT_SECONDS) -> AsyncGenerator[Answer | None]:
        """Yields each update, and None after `silence_seconds` without one. Raises ServiceError."""
        update = self._first or await self._next(silence_seconds)
        while True:
            if update is not None and update.refusal is not None:
                raise error_of(update.refusal)
            yield update
            if update is not None and update.is_last:
                return
            update = await self._next(silence_seconds)

    async def _next(self, seconds: float) -> Answer | None:
        """The next update, or None after `seconds`. Raises Unavailable if the whole wait is too long."""
        try:
            return await asyncio.wait_for(self._stream.inbox.get(), seconds)
        except TimeoutError:
            waited = time.monotonic() - self._started_at
        if waited > CLAIM_SECONDS and not self._stream.is_claimed:
            message = f"No worker was free for the request within {CLAIM_SECONDS:g} s. Try again later."
            raise _timeout(message)
        if waited > TOTAL_SECONDS:
            raise _timeout(f"The answer was not complete after {TOTAL_SECONDS:g} s. Lower max_tokens.")
        return None


def _timeout(message: str) -> ServiceError:
    """A timeout that clients do not retry automatically, because they would wait just as long again."""
    return Unavailable(message, code="generation_timeout", headers={"x-should-retry": "false"})


def error_of(refusal: Refusal) -> ServiceError:
    """The service's error for a worker's refusal."""
    if refusal.code in GONE:
        return NotFound(refusal.message, param=refusal.param, code=refusal.code)
    if refusal.code == Unauthorized.code:
        return Unauthorized(refusal.message, headers={"www-authenticate": "Bearer"})
    if refusal.code in INVALID:
        return InvalidRequest(refusal.message, param=refusal.param, code=refusal.code)
    return Unavailable(refusal.message, param=refusal.param, code=refusal.code)
