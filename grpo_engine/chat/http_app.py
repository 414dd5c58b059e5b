"""OpenAI's chat completions, completions and responses over any backend, as an HTTP application.

A bearer key selects the backend, so the same application serves a loaded model, with one secret, and any
other backend. Boundary: HTTP; backends compute answers, and `requests.py` and `answers.py` hold OpenAI's
forms.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Set
from contextlib import aclosing
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from grpo_engine.chat.answers import AnswerFormat, ChatFormat, TextFormat
from grpo_engine.chat.protocol import INVALID, Answer, Generate, Refusal, Refused, Usage
from grpo_engine.chat.requests import Body, ChatRequest, CompletionRequest
from grpo_engine.chat.responses import ResponseFormat, ResponsesRequest

MAX_BODY_BYTES = 2**20
MAX_OPEN = 16
WAIT_SECONDS = 60.0
"""Maximum wait for another request to end."""
UNKNOWN_ROUTE = "unknown_route"
STATUSES = {
    "invalid_api_key": 401,
    UNKNOWN_ROUTE: 404,
    "payload_too_large": 413,
    "too_many_turns": 400,
    "rollout_over": 400,
    **dict.fromkeys(INVALID, 400),
}
"""Code of a refusal → HTTP status; all other codes are 503."""
T = TypeVar("T")
_Object = TypeAdapter(dict[str, Any])


class Backend(Protocol):
    def answer(self, request: Generate) -> AsyncGenerator[Answer]:
        """The answer piece by piece, the last part with its usage. Raises Refused. Closing it cancels."""


Backends = Callable[[str], Backend | None]
"""The backend of a bearer key; None: the key is wrong."""


class ClientLeft(Exception):
    """The client no longer waits for the answer."""


def only(secret: str, backend: Backend) -> Backends:
    """One backend for one key."""
    return lambda key: backend if secrets.compare_digest(key.encode(), secret.encode()) else None


def create_app(backends: Backends, *, max_open: int = MAX_OPEN, ignored: Set[str] = frozenset()) -> FastAPI:
    """`max_open`: maximum number of requests that are answered at the same time; others wait. `ignored`:
    fields of a request that are not read."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    places = asyncio.Semaphore(max_open)

    def add(path: str, prefix: str, kind: type[Body], made_by: type[AnswerFormat]) -> None:
        @app.post(path)
        async def respond(request: Request) -> Response:
            backend = _backend(backends, request)
            body = _parsed(kind, await _bounded(request), ignored)
            id, now = f"{prefix}-{uuid4().hex}", int(time.time())
            made = made_by(id, now, body.model, body.n or 1, body.includes_usage)
            return await _response(request, body, made, _in_place(places, backend, body.command()))

    add("/v1/chat/completions", "chatcmpl", ChatRequest, ChatFormat)
    add("/v1/completions", "cmpl", CompletionRequest, TextFormat)
    add("/v1/responses", "resp", ResponsesRequest, ResponseFormat)

    @app.get("/health")
    async def health(request: Request) -> Response:
        _backend(backends, request)
        return Response()

    @app.exception_handler(Refused)
    async def refuse(_request: Request, error: Refused) -> Response:
        return JSONResponse(_error_document(error.refusal), STATUSES.get(error.refusal.code, 503))

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        refusal = Refusal(code=UNKNOWN_ROUTE, message=f"Unknown route: {request.method} {request.url.path}.")
        return JSONResponse(_error_document(refusal), error.status_code)

    @app.exception_handler(ClientLeft)
    async def give_up(_request: Request, _error: ClientLeft) -> Response:
        return Response(status_code=499)

    return app


def _backend(backends: Backends, request: Request) -> Backend:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    found = backends(key) if scheme.lower() == "bearer" else None
    if found is None:
        raise Refused("invalid_api_key", "Invalid API key.")
    return found


async def _bounded(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Refused("payload_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return body


def _parsed(kind: type[Body], body: bytes, ignored: Set[str]) -> Body:
    try:
        given = _Object.validate_json(body)
        return kind.model_validate({name: value for name, value in given.items() if name not in ignored})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = [*first["loc"], *first.get("ctx", {}).get("place", ())]
        message = first["msg"].removeprefix("Value error, ")
        raise Refused("invalid_value", message, ".".join(map(str, place)) or None) from error


async def _in_place(places: asyncio.Semaphore, backend: Backend, command: Generate) -> AsyncGenerator[Answer]:
    """The backend's answer, as soon as fewer than `max_open` requests are being answered."""
    try:
        await asyncio.wait_for(places.acquire(), WAIT_SECONDS)
    except TimeoutError:
        message = f"The model was busy with other requests for {WAIT_SECONDS:g} s. Try again later."
        raise Refused("generation_timeout", message) from None
    try:
        async with aclosing(backend.answer(command)) as answers:
            async for answer in answers:
                yield answer
    finally:
        places.release()


async def _response(
    request: Request, body: Body, made: AnswerFormat, answers: AsyncGenerator[Answer]
) -> Response:
    """Wait for the first part, because a refusal is an HTTP error even for a stream. Raises Refused."""
    if not body.stream:
        whole, usage = await _or_left(request, _whole(answers))
        return Response(to_json(made.whole(whole, usage)), media_type="application/json")
    first = await _or_left(request, anext(answers))
    return StreamingResponse(_frames(made, first, answers), media_type="text/event-stream")


async def _whole(answers: AsyncGenerator[Answer]) -> tuple[list[Any], Usage]:
    pieces: list[Any] = []
    async with aclosing(answers):
        async for answer in answers:
            pieces += answer.pieces
            if answer.usage is not None:
                return pieces, answer.usage
    raise AssertionError("unreachable: the last part has the usage")


async def _frames(made: AnswerFormat, first: Answer, answers: AsyncGenerator[Answer]) -> AsyncIterator[bytes]:
    """All chunks; an error becomes the last one."""
    async with aclosing(answers):
        for chunk in made.opening():
            yield _frame(chunk)
        answer: Answer | None = first
        try:
            while answer is not None:
                for chunk in made.part(answer):
                    yield _frame(chunk)
                answer = await anext(answers, None)
        except Refused as error:
            yield _frame(_error_document(error.refusal))
            return
        if made.ends_with_done:
            yield b"data: [DONE]\n\n"


def _frame(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


async def _or_left(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects. Raises ClientLeft then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error_document(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error body."""
    kind = "invalid_request_error" if refusal.code in STATUSES else "server_error"
    fields = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": fields}
