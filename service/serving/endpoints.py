"""`/v1/chat/completions` and `/v1/completions`: try a model before you download it.

The read scope is enough: requests change nothing and are not kept.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from grpo_engine.serve.answers import ChatCompletion, TextCompletion
from grpo_engine.serve.requests import Body, ChatRequest, CompletionRequest
from service.platform.errors import ServiceError
from service.serving.answer import OpenAnswer
from service.serving.service import wanted_model
from service.web.auth import Reader
from service.web.dependencies import CatalogDep, DatabaseDep

router = APIRouter(prefix="/v1", tags=["models"])

EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
CHUNKS = {
    "description": "The completion; with `stream: true` its chunks as server-sent events, then `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENT}},
}


async def _open_answer(request: Request, principal: Reader) -> AsyncIterator[OpenAnswer]:
    """Count the request, and close it when the response was sent or the client has disconnected."""
    state = request.app.state
    with state.chat_limit.slot(principal.tenant):
        answer = OpenAnswer(state.chat_feed, state.model_servers, principal.tenant, principal.key_id)
        try:
            yield answer
        finally:
            answer.close()


AnswerDep = Annotated[OpenAnswer, Depends(_open_answer)]


@router.post("/chat/completions", response_model=ChatCompletion, responses={200: CHUNKS})
async def create_chat_completion(
    body: ChatRequest, request: Request, database: DatabaseDep, catalog: CatalogDep, answer: AnswerDep
) -> Response:
    """OpenAI's chat completions for base models, fine-tuned models and checkpoints.

    For low traffic: to try a model before you download it. Unsupported options are refused.
    """
    model = await run_in_threadpool(wanted_model, database, catalog, answer.tenant, body.model)
    answer.send(model, "/v1/chat/completions", body)
    return await _respond(request, body, answer)


@router.post("/completions", response_model=TextCompletion, responses={200: CHUNKS})
async def create_completion(
    body: CompletionRequest, request: Request, database: DatabaseDep, catalog: CatalogDep, answer: AnswerDep
) -> Response:
    """OpenAI's completions: the model reads the prompt without a chat template."""
    model = await run_in_threadpool(wanted_model, database, catalog, answer.tenant, body.model)
    answer.send(model, "/v1/completions", body)
    return await _respond(request, body, answer)


async def _respond(request: Request, body: Body, answer: OpenAnswer) -> Response:
    await answer.start(request.is_disconnected)
    if not body.stream:
        return Response(await answer.whole(request.is_disconnected), media_type="application/json")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_frames(answer), headers=headers)


async def _frames(answer: OpenAnswer) -> AsyncIterator[bytes]:
    """The server's frames; an error becomes the last one, in OpenAI's shape."""
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                yield KEEPALIVE_COMMENT if piece is None else piece
    except ServiceError as error:
        # after a blank line, because the server may have ended within a frame
        yield b"\n\n" + format_sse_event(data_str=json.dumps(error.body(), ensure_ascii=False))
