"""Limits concurrent requests per API key without blocking threads.

A server process runs plain endpoints in 40 threads. Without this limit, slow requests of one key could take
all of them. Further requests of the key wait as coroutines.
Boundary: asyncio, and the public part of the key as the client sent it; `auth.py` checks the key.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from weakref import WeakValueDictionary

from fastapi import Request

REQUESTS_PER_KEY = 16
UPLOADS, UPLOADS_PER_KEY = 8, 4
"""Maximum number of concurrent uploads, overall and per key. They run in threads in addition to the 40."""
_PUBLIC_ID = re.compile(r"[Bb]earer +grpo_([0-9A-Za-z]{1,64})_")


class PerKeyConcurrency:
    """A semaphore per API key and event loop, dropped when unused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphores: WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = WeakValueDictionary()

    def of(self, request: Request) -> asyncio.Semaphore:
        """The semaphore of the request's key; requests without a key share one."""
        found = _PUBLIC_ID.match(request.headers.get("authorization", ""))
        place = id(asyncio.get_running_loop()), found[1] if found else ""
        return self._semaphores.setdefault(place, asyncio.Semaphore(self._limit))


async def limit_requests_of_key(request: Request) -> AsyncIterator[None]:
    """Dependency of every route. If the endpoint runs in a thread, holds a place until it has returned."""
    if iscoroutinefunction(request.scope["endpoint"]):
        yield
        return
    async with request.app.state.requests_per_key.of(request):
        yield
