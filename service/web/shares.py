"""Threads for everybody: a request that needs one waits, without one, while many of its key have theirs.

A server process works on plain endpoints with 40 threads. Slow requests of one key would take them all, and
nobody else would be answered.
Boundary: asyncio, and the public part of the key as the client wrote it; whether it is good is `auth.py`'s.
"""

from __future__ import annotations

import asyncio
import re
from inspect import iscoroutinefunction
from weakref import WeakValueDictionary

from fastapi import Request
from starlette.types import Scope

OF_KEY = 16
"""Requests of one key that are worked on at once; more would take the interpreter from one another."""
UPLOADS, UPLOADS_OF_KEY = 8, 4
"""Uploads that are checked and stored at once, in threads beside the 40."""
_TURN = "turn_of_key"
_PUBLIC_ID = re.compile(r"[Bb]earer +grpo_([0-9A-Za-z]{1,64})_")


class Shares:
    """`each` turns at once for each name, in each event loop: a server has one."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._turns: WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Semaphore:
        """Acquired and released; forgotten when nobody has a turn or waits for one."""
        place = id(asyncio.get_running_loop()), name
        turns = self._turns.get(place)
        if turns is None:
            turns = self._turns[place] = asyncio.Semaphore(self._each)
        return turns


async def take_turn(request: Request) -> None:
    """Before every endpoint that works in a thread."""
    if iscoroutinefunction(request.scope["endpoint"]):
        return
    turns = request.app.state.thread_shares.of(key_of(request))
    await turns.acquire()
    request.scope["state"][_TURN] = turns


def give_turn_back(scope: Scope) -> None:
    """When the answer begins, or did not: what is sent afterwards needs no turn."""
    turns = scope["state"].pop(_TURN, None)
    if turns is not None:
        turns.release()


def key_of(request: Request) -> str:
    """Its public id; those without a key are one."""
    found = _PUBLIC_ID.match(request.headers.get("authorization", ""))
    return found[1] if found else ""
