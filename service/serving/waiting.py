"""One request's wait: for its first news, for all of it, and never for too long.

Boundary: turns refusals of a worker into the service's errors; reading is the feed's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import ClientDisconnect

from grpo_engine.serve.protocol import Answer, Piece, Refusal, Usage
from service.platform.errors import InvalidRequest, NotFound, ServiceError, Unauthorized, Unavailable
from service.platform.ids import new_id
from service.serving.feed import AnswerFeed, AnswerStream

CLAIM_SECONDS = 60.0
"""So long a request waits for a worker that has a place for it."""
TOTAL_SECONDS = 600.0
"""So long an answer may take, the loading of its model included."""
SILENT_SECONDS = 15.0
"""After so long a stream begins though there is nothing to say: proxies give up on silence."""
LOOK_SECONDS = 0.5
"""Between two looks whether the client is still there."""
GONE = {"model_not_found", "base_model_changed"}
"""Codes of refusals that no other worker will take back."""
INVALID = {"context_length_exceeded", "invalid_messages", "empty_prompt"}
"""Codes of refusals that the request itself is the reason of."""


class Talk:
    """A request on its way. `close` it, whatever happens: then its worker stops."""

    def __init__(self, feed: AnswerFeed, prefix: str, key_id: str) -> None:
        self.id = new_id(prefix)
        self._feed = feed
        self._key_id = key_id
        self._stream: AnswerStream | None = None
        self._began_at = time.monotonic()
        self._early: Answer | None = None

    def close(self) -> None:
        if self._stream is not None:
            self._feed.unsubscribe(self._stream)

    async def begin(self, has_left: Callable[[], Awaitable[bool]]) -> None:
        """Waits for the first news, though not long; what is wrong by then is still a status of its own.

        Raises ServiceError, and ClientDisconnect where the client leaves first.
        """
        self._stream = AnswerStream(self.id, self._key_id)
        self._feed.subscribe(self._stream)
        silent_until = time.monotonic() + SILENT_SECONDS
        while self._early is None and time.monotonic() < silent_until:
            self._early = await self._heard(LOOK_SECONDS)
            if self._early is None and await has_left():
                raise ClientDisconnect
        if self._early is not None and self._early.refusal is not None:
            raise error_of(self._early.refusal)

    async def whole(self, has_left: Callable[[], Awaitable[bool]]) -> tuple[list[Piece], Usage]:
        """All of it. Raises ServiceError, and ClientDisconnect where the client leaves first."""
        pieces: list[Piece] = []
        async for news in self.rest(LOOK_SECONDS):
            if news is None and await has_left():
                raise ClientDisconnect
            if news is not None:
                pieces += news.pieces
                if news.usage is not None:
                    return pieces, news.usage
        raise AssertionError("unreachable: the last news has a usage")

    async def rest(self, silence_seconds: float = SILENT_SECONDS) -> AsyncGenerator[Answer | None]:
        """News up to the last one; None: nothing for so long. Raises ServiceError."""
        news = self._early or await self._heard(silence_seconds)
        while True:
            if news is not None and news.refusal is not None:
                raise error_of(news.refusal)
            yield news
            if news is not None and news.is_last:
                return
            news = await self._heard(silence_seconds)

    async def _heard(self, seconds: float) -> Answer | None:
        """Raises Unavailable where it has taken too long."""
        assert self._stream is not None
        try:
            return await asyncio.wait_for(self._stream.inbox.get(), seconds)
        except TimeoutError:
            self._check_patience(self._stream)
            return None

    def _check_patience(self, stream: AnswerStream) -> None:
        waited = time.monotonic() - self._began_at
        if waited > CLAIM_SECONDS and not stream.is_claimed:
            message = f"No worker had a place for the request within {CLAIM_SECONDS:g} s; try again later."
            raise _too_long(message)
        if waited > TOTAL_SECONDS:
            raise _too_long(f"The answer was not complete after {TOTAL_SECONDS:g} s: lower max_tokens.")


def _too_long(message: str) -> ServiceError:
    """A client that repeats it by itself would wait as long again."""
    return Unavailable(message, code="generation_timeout", headers={"x-should-retry": "false"})


def error_of(refusal: Refusal) -> ServiceError:
    """A refusal as this service's error."""
    if refusal.code in GONE:
        return NotFound(refusal.message, param=refusal.param, code=refusal.code)
    if refusal.code == Unauthorized.code:
        return Unauthorized(refusal.message, headers={"www-authenticate": "Bearer"})
    if refusal.code in INVALID:
        return InvalidRequest(refusal.message, param=refusal.param, code=refusal.code)
    return Unavailable(refusal.message, param=refusal.param, code=refusal.code)
