"""`/v1/chat/completions` and `/v1/completions`: try a model before you download it.

The read scope is enough: requests change nothing and are not kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from grpo_engine.serve.protocol import Piece
from service.platform.errors import ServiceError
from service.platform.feed import stop_on_signals
from service.serving.answers import Answered, ChatCompletion, Completion, Document
from service.serving.feed import AnswerFeed
from service.serving.schemas import Body, ChatRequest, CompletionRequest
from service.serving.service import Chat
from service.serving.waiting import Talk
from service.web.auth import Reader
from service.web.dependencies import CatalogDep, DatabaseDep, SettingsDep

router = APIRouter(prefix="/v1", tags=["models"])

EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
CHUNKS = {
    "description": "The completion; with `stream: true` its chunks as server-sent events, then `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENT}},
}


def _chat(database: DatabaseDep, catalog: CatalogDep, settings: SettingsDep) -> Chat:
    return Chat(database, catalog, settings)


async def _feed(request: Request, database: DatabaseDep) -> AnswerFeed:
    """The process's only feed, created with the first request."""
    state = request.app.state
    if not hasattr(state, "chat_feed"):
        state.chat_feed = AnswerFeed(database)
        stop_on_signals(state.chat_feed)
    feed: AnswerFeed = state.chat_feed
    return feed


FeedDep = Annotated[AnswerFeed, Depends(_feed)]


def _talk(prefix: str) -> Callable[..., AsyncIterator[Talk]]:
    """A dependency that closes the talk when the response has been sent or the client has left."""

    async def open_talk(feed: FeedDep, principal: Reader) -> AsyncIterator[Talk]:
        talk = Talk(feed, prefix, principal.key_id)
        try:
            yield talk
        finally:
            talk.close()

    return open_talk


ChatDep = Annotated[Chat, Depends(_chat)]


@router.post("/chat/completions", response_model=ChatCompletion, responses={200: CHUNKS})
async def create_chat_completion(
    body: ChatRequest,
    request: Request,
    principal: Reader,
    chat: ChatDep,
    talk: Annotated[Talk, Depends(_talk("chatcmpl"))],
) -> ChatCompletion | Response:
    """OpenAI's chat completions for base models, fine-tuned models and checkpoints.

    For low traffic: to try a model before you download it. Unsupported options are refused.
    """
    await run_in_threadpool(chat.submit, principal.tenant, talk.id, body)
    await talk.begin(request.is_disconnected)
    answered = _answered(talk, body)
    if not body.stream:
        return answered.chat(*await talk.whole(request.is_disconnected))
    opening = answered.chat_opening(body.n or 1)
    return _streamed(_frames(talk, answered, "chat.completion.chunk", answered.chat_chunks, opening))


@router.post("/completions", response_model=Completion, responses={200: CHUNKS})
async def create_completion(
    body: CompletionRequest,
    request: Request,
    principal: Reader,
    chat: ChatDep,
    talk: Annotated[Talk, Depends(_talk("cmpl"))],
) -> Completion | Response:
    """OpenAI's completions: the model reads the prompt without a chat template."""
    await run_in_threadpool(chat.submit, principal.tenant, talk.id, body)
    await talk.begin(request.is_disconnected)
    answered = _answered(talk, body)
    if not body.stream:
        return answered.text(*await talk.whole(request.is_disconnected))
    return _streamed(_frames(talk, answered, "text_completion", answered.text_chunks, []))


def _answered(talk: Talk, body: Body) -> Answered:
    return Answered(talk.id, int(time.time()), body.model, body.includes_usage)


def _streamed(frames: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(frames, headers=headers)


async def _frames(
    talk: Talk,
    answered: Answered,
    kind: str,
    chunks_of: Callable[[Piece], list[Document]],
    opening: list[Document],
) -> AsyncIterator[bytes]:
    """All chunks; an error becomes the last one, in OpenAI's shape."""
    for chunk in opening:
        yield _frame(chunk)
    try:
        async with aclosing(talk.rest()) as rest:
            async for news in rest:
                if news is None:
                    yield KEEPALIVE_COMMENT
                    continue
                for piece in news.pieces:
                    for chunk in chunks_of(piece):
                        yield _frame(chunk)
                if news.usage is not None and answered.includes_usage:
                    yield _frame(answered.usage_chunk(kind, news.usage))
    except ServiceError as error:
        yield _frame(error.body())
        return
    yield format_sse_event(data_str="[DONE]")


def _frame(document: Any) -> bytes:
    return format_sse_event(data_str=json.dumps(document, ensure_ascii=False))
