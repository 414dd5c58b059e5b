"""What comes back, for everybody who waits: one poller per process reads for all requests.

Boundary: asyncio and rows. A listener holds no database connection; when it is closed, the poller deletes its
row, which is also how a worker learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from grpo_engine.serve.protocol import Answer, Piece, Refusal, Usage
from service.jobs.progress.stream import KEY_SECONDS
from service.platform.db import Database
from service.platform.errors import Unauthorized
from service.platform.tables.serving import GenerationState
from service.serving import repository
from service.serving.repository import Head
from service.web.auth import usable_keys

log = structlog.get_logger()

POLL_SECONDS = 0.05
GONE = Refusal(code="generation_lost", message="The request was ended from elsewhere.")
LOST = Refusal(code="worker_lost", message="The worker that was answering has gone; try again.")
KEYLESS = Refusal(code=Unauthorized.code, message="This API key was revoked or has expired.")
STOPPING = Refusal(code="service_stopping", message="The service is being restarted; try again.")


@dataclass(eq=False)
class Listener:
    """Who waits for one request."""

    id: str
    key_id: str
    """Of the API key that asked."""
    inbox: asyncio.Queue[Answer] = field(default_factory=asyncio.Queue)
    num_chunks: int = 0
    """Told so far."""
    is_claimed: bool = False
    is_over: bool = False

    def tell(self, news: Answer) -> None:
        if not self.is_over and (news.pieces or news.is_last):
            self.is_over = news.is_last
            self.inbox.put_nowait(news)

    def refuse(self, refusal: Refusal) -> None:
        self.tell(Answer(id=self.id, refusal=refusal))


class Feed:
    """The process's one poller. Used inside one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: dict[str, Listener] = {}
        self._closed: set[str] = set()
        """Whose rows are to be deleted."""
        self._task: asyncio.Task[None] | None = None

    def listen(self, id: str, key_id: str) -> Listener:
        """For a request that has been stored; to be closed, whatever happens."""
        listener = self._listeners[id] = Listener(id, key_id)
        self._run()
        return listener

    def close(self, listener: Listener) -> None:
        """Nobody waits for it any more."""
        if self._listeners.pop(listener.id, None) is not None:
            self._closed.add(listener.id)
            self._run()

    def stop(self) -> None:
        """Ends all answers, so that the server need not wait for them."""
        for listener in self._listeners.values():
            listener.refuse(STOPPING)

    def _run(self) -> None:
        if self._task is None or self._task.done():
            # for all requests: its lines are not about the one that came first
            self._task = asyncio.create_task(self._poll(), context=contextvars.Context())

    async def _poll(self) -> None:
        """Runs while somebody waits, or a row is to be deleted."""
        checked_at = time.monotonic()
        while self._listeners or self._closed:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._delete_closed()
                await self._tell_news()
                if time.monotonic() - checked_at >= KEY_SECONDS:
                    await self._refuse_keyless()
                    checked_at = time.monotonic()
            except SQLAlchemyError as error:
                log.warning("answers wait for the database", error=type(error).__name__)

    async def _delete_closed(self) -> None:
        closed = sorted(self._closed)
        if closed:
            await run_in_threadpool(self._forget, closed)
            self._closed.difference_update(closed)

    async def _tell_news(self) -> None:
        told = {id: one.num_chunks for id, one in self._listeners.items() if not one.is_over}
        if not told:
            return
        news, heads = await run_in_threadpool(self._look, told)
        for id in told:
            listener, head = self._listeners.get(id), heads.get(id)
            if listener is not None:
                listener.is_claimed = head is not None and head.state is not GenerationState.WAITING
                listener.num_chunks = max(told[id], head.num_chunks if head is not None else 0)
                listener.tell(news[id])

    async def _refuse_keyless(self) -> None:
        """Ends the answers whose key was revoked or has expired since they were asked for."""
        open_ = list(self._listeners.values())
        usable = await run_in_threadpool(self._usable, sorted({listener.key_id for listener in open_}))
        for listener in open_:
            if listener.key_id not in usable:
                listener.refuse(KEYLESS)

    def _usable(self, key_ids: list[str]) -> set[str]:
        with self._database.reading() as session:
            return usable_keys(session, key_ids)

    def _forget(self, ids: list[str]) -> None:
        with self._database.transaction() as session:
            repository.forget(session, ids)

    def _look(self, told: Mapping[str, int]) -> tuple[dict[str, Answer], dict[str, Head]]:
        """The heads first: chunks that come in between are told in the next round, none twice."""
        with self._database.reading() as session:
            heads = repository.heads(session, list(told))
            behind = {id: number for id, number in told.items() if _num_chunks(heads, id) > number}
            chunks = repository.chunks_after(session, behind) if behind else {}
        found = {}
        for id in told:
            known = [chunk for chunk in chunks.get(id, ()) if chunk.sequence <= _num_chunks(heads, id)]
            pieces = [Piece.model_validate(piece) for chunk in known for piece in chunk.pieces]
            found[id] = _answer(id, heads.get(id), tuple(pieces))
        return found, heads


def _num_chunks(heads: Mapping[str, Head], id: str) -> int:
    return heads[id].num_chunks if id in heads else 0


def _answer(id: str, head: Head | None, pieces: tuple[Piece, ...]) -> Answer:
    if head is None:
        return Answer(id=id, refusal=GONE)
    if head.state is GenerationState.DONE:
        return Answer(id=id, pieces=pieces, usage=Usage.model_validate(head.usage))
    if head.state is GenerationState.FAILED:
        return Answer(id=id, pieces=pieces, refusal=Refusal.model_validate(head.refusal))
    return Answer(id=id, pieces=pieces, refusal=LOST if head.is_lost else None)
