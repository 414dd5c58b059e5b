"""Refuses JSON that lenient parsers accept: NaN, infinite numbers, duplicate keys, NUL, surrogates, depth.

Boundary: one check before every endpoint; schemas check the fields.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from fastapi import Request

from grpo_engine.contract.strict_json import (
    TOO_LARGE,
    UNSTORABLE,
    NestingError,
    StrictJsonError,
    parse_document,
)
from service.platform.errors import InvalidRequest, PayloadTooLarge
from service.web.validation import field_path, invalid_json, syntax_reason

MAX_DEPTH = 100
MAX_JSON_BYTES = 2**20
MAX_CONTAINERS = 20_000
"""Lists and objects of a body. Python takes seconds to read and check the 350,000 that fit into 1 MiB."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ESCAPE = re.compile(rb"\\u0000|\\u[dD][89a-fA-F]")
_Place = tuple[Any, str | int] | None
"""The place of the outer value, and the name or index inside it; None: the root. They are shared, because a
tuple of all steps for each value of a deep body would take 400 MB."""


async def require_strict_json(request: Request) -> None:
    """Dependency of every route. Raises InvalidRequest unless the text is strict JSON and can be stored."""
    query = [text for pair in request.query_params.multi_items() for text in pair]
    if any("\x00" in text for text in (request.url.path, *query)):
        raise InvalidRequest("NUL characters are not allowed in a URL.")
    if compressed := compressed_body(request):
        raise compressed
    if not is_json(request):
        return
    body = await _limited_body(request)
    _refuse_other_encodings(body)
    if (num_containers := _num_containers(body)) > MAX_CONTAINERS:
        raise PayloadTooLarge(f"The JSON body has more than {MAX_CONTAINERS} lists and objects.")
    try:
        value = parse_document(body or b"null")
    except ValueError as error:
        raise invalid_json(unreadable_reason(error)) from error
    if num_containers > MAX_DEPTH or _ESCAPE.search(body):
        _refuse_odd(value)


async def _limited_body(request: Request) -> bytes:
    """The body. Raises PayloadTooLarge before more than the limit is in memory: the route may be that of
    uploads, and the key is not checked yet."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_JSON_BYTES:
            raise PayloadTooLarge(f"The JSON body is larger than {MAX_JSON_BYTES} bytes.")
    return bytes(body)


def is_json(request: Request) -> bool:
    """Whether the body's media type, which may be written in capitals, is one that FastAPI reads as JSON.

    Its parameters do not count: the boundary of a form is random and may contain any letters.
    """
    return "json" in request.headers.get("content-type", "").partition(";")[0].lower()


def compressed_body(request: Request) -> InvalidRequest | None:
    """The error for a compressed body; None if it is not compressed."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    message = f"Content-Encoding {encoding[:40]!r} is not supported. Send the body uncompressed."
    return InvalidRequest(message, code="invalid_body")


def unreadable_reason(error: BaseException | None) -> str:
    """Why Python's JSON parser failed."""
    match error:
        case RecursionError() | NestingError():
            return f"it is nested too deep, more than {MAX_DEPTH} levels"
        case UnicodeDecodeError():
            return f"byte {error.start + 1} is not UTF-8"
        case StrictJsonError():
            return str(error)
        case json.JSONDecodeError():
            return syntax_reason(error.msg, error.pos)
        case ValueError() if "integer string conversion" in str(error):
            return TOO_LARGE
        case _:
            return "it cannot be parsed"


def _num_containers(body: bytes) -> int:
    """Number of opening brackets, which may include those in strings if there are only a few."""
    count = body.count(b"[") + body.count(b"{")
    if count <= MAX_CONTAINERS:
        return count
    outside = _STRING.sub(b"", body)
    return outside.count(b"[") + outside.count(b"{")


def _refuse_other_encodings(body: bytes) -> None:
    """Raise InvalidRequest unless the body is UTF-8; Python's parser also accepts UTF-16 and UTF-32."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise invalid_json(f"byte {error.start + 1} is not UTF-8") from error
    if "\x00" in text:
        raise invalid_json("it contains NUL bytes")


def _refuse_odd(root: Any) -> None:
    pending: list[tuple[Any, int, _Place]] = [(root, 0, None)]
    while pending:
        value, depth, place = pending.pop()
        if depth > MAX_DEPTH:
            raise invalid_json(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(value, str) and UNSTORABLE.search(value):
            where = field_path(("body", *_steps(place)), root)
            raise InvalidRequest(f"{where}: NUL characters and lone surrogates are not allowed.", param=where)
        if isinstance(value, dict):
            pending += [(name, depth, place) for name in value if UNSTORABLE.search(name)]
        pending += [(inner, depth + 1, (place, step)) for step, inner in _inside(value) if _may_be_odd(inner)]


def _inside(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _may_be_odd(value: Any) -> bool:
    return bool(UNSTORABLE.search(value)) if isinstance(value, str) else isinstance(value, dict | list)


def _steps(place: _Place) -> tuple[str | int, ...]:
    """The names and indexes from the root to the place."""
    steps: list[str | int] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return tuple(reversed(steps))
