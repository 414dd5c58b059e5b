"""`/v1/chat/completions` and `/v1/completions`: try a model before you download it.

The read scope is enough: requests change nothing and are not kept.
"""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from service.platform.errors import ServiceError
from service.serving.answers import AnswerFormat, ChatCompletion, ChatFormat, Completion, Document, TextFormat
from service.serving.feed import AnswerFeed
from service.serving.schemas import Body, ChatRequest, CompletionRequest
from service.serving.service import Chat
from service.serving.waiting import PendingAnswer
from service.web.auth import Reader
from service.web.dependencies import from_state

router = APIRouter(prefix="/v1", tags=["models"])

EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
CHUNKS = {
    "description": "The completion; with `stream: true` its chunks as server-sent events, then `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENT}},
}


def _pending(prefix: str) -> Callable[..., AsyncIterator[PendingAnswer]]:
    """A dependency that closes the answer when the response was sent or the client has disconnected."""

    async def open_answer(
        feed: Annotated[AnswerFeed, Depends(from_state("chat_feed"))], principal: Reader
    ) -> AsyncIterator[PendingAnswer]:
        pending = PendingAnswer(feed, prefix, principal.key_id)
        try:
            yield pending
        finally:
            pending.close()

    return open_answer


ChatDep = Annotated[Chat, Depends()]


@router.post("/chat/completions", response_model=ChatCompletion, responses={200: CHUNKS})
async def create_chat_completion(
    body: ChatRequest,
    request: Request,
    principal: Reader,
    chat: ChatDep,
    pending: Annotated[PendingAnswer, Depends(_pending("chatcmpl"))],
) -> ChatCompletion | Completion | Response:
    """OpenAI's chat completions for base models, fine-tuned models and checkpoints.

    For low traffic: to try a model before you download it. Unsupported options are refused.
    """
    await run_in_threadpool(chat.submit, principal.tenant, pending.id, body)
    return await _respond(request, body, pending, ChatFormat)


@router.post("/completions", response_model=Completion, responses={200: CHUNKS})
async def create_completion(
    body: CompletionRequest,
    request: Request,
    principal: Reader,
    chat: ChatDep,
    pending: Annotated[PendingAnswer, Depends(_pending("cmpl"))],
) -> ChatCompletion | Completion | Response:
    """OpenAI's completions: the model reads the prompt without a chat template."""
    await run_in_threadpool(chat.submit, principal.tenant, pending.id, body)
    return await _respond(request, body, pending, TextFormat)


async def _respond(
    request: Request, body: Body, pending: PendingAnswer, make_format: type[AnswerFormat]
) -> ChatCompletion | Completion | Response:
    await pending.start(request.is_disconnected)
    format_ = make_format(pending.id, int(time.time()), body.model, body.n or 1, body.includes_usage)
    if not body.stream:
        return format_.whole(*await pending.whole(request.is_disconnected))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_frames(pending, format_), headers=headers)


async def _frames(pending: PendingAnswer, format_: AnswerFormat) -> AsyncIterator[bytes]:
    """All chunks; an error becomes the last one, in OpenAI's shape."""
    for chunk in format_.opening():
        yield _frame(chunk)
    try:
        async with aclosing(pending.updates()) as updates:
            async for update in updates:
                if update is None:
                    yield KEEPALIVE_COMMENT
                    continue
                for piece in update.pieces:
                    for chunk in format_.chunks(piece):
                        yield _frame(chunk)
                if update.usage is not None and format_.includes_usage:
                    yield _frame(format_.usage_chunk(update.usage))
    except ServiceError as error:
        yield _frame(error.body())
        return
    yield format_sse_event(data_str="[DONE]")


def _frame(document: Document) -> bytes:
    return format_sse_event(data_str=json.dumps(document, ensure_ascii=False))
