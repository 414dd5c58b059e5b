"""Delivers models' answers, as workers write them, to the requests that wait for them in this process.

A closed request's row is deleted; the worker then stops answering it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from grpo_engine.serve.protocol import Answer, Piece, Refusal, Usage
from service.platform.errors import Unauthorized
from service.platform.feed import Ending, Feed, Subscriber
from service.platform.tables.serving import GenerationChunk, GenerationState
from service.serving import repository
from service.serving.repository import Head

GONE = Refusal(code="generation_lost", message="The request was deleted before it was answered.")
LOST = Refusal(code="worker_lost", message="The worker that was answering has stopped. Try again.")
ENDINGS = {
    Ending.KEY_INVALID: Refusal(code=Unauthorized.code, message="This API key was revoked or has expired."),
    Ending.SERVICE_STOPPING: Refusal(
        code="service_stopping", message="The service is restarting. Try again."
    ),
}


@dataclass(frozen=True)
class AnswerUpdate:
    """The state of a request as the feed read it."""

    latest: int
    """Number of the newest chunk that was read."""
    answer: Answer
    is_claimed: bool


@dataclass(eq=False)
class AnswerStream(Subscriber[AnswerUpdate]):
    """The inbox of one request."""

    topic: str
    """The request's id."""
    key_id: str
    inbox: asyncio.Queue[Answer] = field(default_factory=asyncio.Queue)
    is_claimed: bool = False
    is_over: bool = False

    def deliver(self, update: AnswerUpdate) -> None:
        self.is_claimed = update.is_claimed
        self._put(update.answer)

    def end(self, ending: Ending) -> None:
        self._put(Answer(id=self.topic, refusal=ENDINGS[ending]))

    def _put(self, answer: Answer) -> None:
        if not self.is_over and (answer.pieces or answer.is_last):
            self.is_over = answer.is_last
            self.inbox.put_nowait(answer)


class AnswerFeed(Feed[AnswerStream, AnswerUpdate]):
    """The process's poller of requests to models."""

    poll_seconds = 0.05

    def release(self, topics: Sequence[str]) -> None:
        with self._database.transaction() as session:
            repository.forget(session, topics)

    def read(self, session: Session, seen: Mapping[str, int | None]) -> dict[str, AnswerUpdate]:
        """Read the heads, then the chunks. Chunks added in between are left for the next round."""
        heads = repository.heads(session, list(seen))
        behind = {id: seen[id] or 0 for id, head in heads.items() if head.num_chunks > (seen[id] or 0)}
        chunks = repository.chunks_after(session, behind) if behind else {}
        return {id: _update(id, heads.get(id), chunks.get(id, ())) for id in seen}


def _update(id: str, head: Head | None, chunks: Sequence[GenerationChunk]) -> AnswerUpdate:
    if head is None:
        return AnswerUpdate(0, Answer(id=id, refusal=GONE), is_claimed=False)
    complete = [chunk for chunk in chunks if chunk.sequence <= head.num_chunks]
    pieces = tuple(Piece.model_validate(piece) for chunk in complete for piece in chunk.pieces)
    is_claimed = head.state is not GenerationState.WAITING
    return AnswerUpdate(head.num_chunks, _answer(id, head, pieces), is_claimed)


def _answer(id: str, head: Head, pieces: tuple[Piece, ...]) -> Answer:
    if head.state is GenerationState.DONE:
        return Answer(id=id, pieces=pieces, usage=Usage.model_validate(head.usage))
    if head.state is GenerationState.FAILED:
        return Answer(id=id, pieces=pieces, refusal=Refusal.model_validate(head.refusal))
    return Answer(id=id, pieces=pieces, refusal=LOST if head.is_lost else None)
