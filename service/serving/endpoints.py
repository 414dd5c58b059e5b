"""`/v1/chat/completions` and `/v1/completions`: try a model before you download it.

The read scope is enough: requests change nothing and are not kept.
"""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from grpo_engine.chat.answers import ChatCompletion, TextCompletion
from grpo_engine.chat.requests import Body, ChatRequest, CompletionRequest
from service.platform.errors import ServiceError
from service.platform.feed import notice_lost_connection
from service.serving.answer import OpenAnswer
from service.serving.service import wanted_model
from service.web.auth import Reader
from service.web.dependencies import CatalogDep, DatabaseDep

router = APIRouter(prefix="/v1", tags=["models"])

SILENT_SECONDS = 15.0
"""Longest silence of a stream, because proxies close silent connections."""
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
CHUNKS = {
    "description": "The completion; with `stream: true` its chunks as server-sent events, then `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENT}},
}


async def _open_answer(request: Request, principal: Reader) -> AsyncIterator[OpenAnswer]:
    """Count the request, and close it when the response was sent or the client has disconnected."""
    state = request.app.state
    with state.chat_limit.slot(principal.tenant):
        has_left = request.is_disconnected
        answer = OpenAnswer(
            state.chat_feed, state.model_servers, has_left, principal.tenant, principal.key_id
        )
        try:
            yield answer
        finally:
            answer.close()


AnswerDep = Annotated[OpenAnswer, Depends(_open_answer)]


@router.post("/chat/completions", response_model=ChatCompletion, responses={200: CHUNKS})
async def create_chat_completion(
    body: ChatRequest, database: DatabaseDep, catalog: CatalogDep, answer: AnswerDep
) -> Response:
    """OpenAI's chat completions for base models, fine-tuned models and checkpoints.

    For low traffic: to try a model before you download it. Unsupported options are refused.
    """
    model = await run_in_threadpool(wanted_model, database, catalog, answer.tenant, body.model)
    answer.send(model, "/v1/chat/completions", body)
    return await _respond(body, answer)


@router.post("/completions", response_model=TextCompletion, responses={200: CHUNKS})
async def create_completion(
    body: CompletionRequest, database: DatabaseDep, catalog: CatalogDep, answer: AnswerDep
) -> Response:
    """OpenAI's completions: the model reads the prompt without a chat template."""
    model = await run_in_threadpool(wanted_model, database, catalog, answer.tenant, body.model)
    answer.send(model, "/v1/completions", body)
    return await _respond(body, answer)


async def _respond(body: Body, answer: OpenAnswer) -> Response:
    pieces = answer.pieces()
    if not body.stream:
        whole = b"".join([piece async for piece in pieces if piece is not None])
        return Response(whole, media_type="application/json")
    silent_until = time.monotonic() + SILENT_SECONDS
    # an error that arrives by then is an HTTP error
    while (first := await anext(pieces, b"")) is None and time.monotonic() < silent_until:
        pass
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_frames(first, pieces), headers=headers)


async def _frames(first: bytes | None, pieces: AsyncGenerator[bytes | None]) -> AsyncIterator[bytes]:
    """The server's frames; an error becomes the last one, in OpenAI's shape."""
    yield first or KEEPALIVE_COMMENT
    sent_at = time.monotonic()
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                if piece is not None or time.monotonic() - sent_at > SILENT_SECONDS:
                    yield piece or KEEPALIVE_COMMENT
                    sent_at = time.monotonic()
                    await notice_lost_connection()
    except ServiceError as error:
        # after a blank line, because the server may have ended within a frame
        yield b"\n\n" + format_sse_event(data_str=json.dumps(error.body(), ensure_ascii=False))
