"""Exception handlers: every known exception becomes a response in OpenAI's error shape.

Boundary: translation only. `middleware.py` logs and answers unknown exceptions.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.platform.errors import (
    InsufficientStorage,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    ServiceError,
    Unavailable,
)
from service.platform.storage import StorageError, StorageFull
from service.web.strict_json import compressed_body, unreadable_reason
from service.web.validation import invalid_json, invalid_request

log = structlog.get_logger()

RETRY_SECONDS = 5
DATABASE_ERRORS = (OperationalError, InterfaceError, PoolTimeout)


def install(app: FastAPI) -> None:
    """Register all handlers."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(OSError, _os_error)
    app.add_exception_handler(StorageError, _storage_down)
    for kind in DATABASE_ERRORS:
        app.add_exception_handler(kind, _database_down)


def error_response(error: ServiceError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _service_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    return error_response(error)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    if compressed := compressed_body(request):
        return error_response(compressed)
    if isinstance(error.body, bytes) and not _is_json(request):
        return error_response(InvalidRequest("Send the body as application/json.", code="invalid_json"))
    return error_response(invalid_request(error.errors(), error.body))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's errors: unknown route, wrong method, a body that is too large or unreadable.

    If our middleware raised an error while FastAPI read the body, that error is the cause.
    """
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ServiceError):
        return error_response(error.__cause__)
    reason = f"There is no {request.method} {request.url.path}."
    match error.status_code:
        case 404:
            answer: ServiceError = NotFound(reason, code="unknown_route")
        case 405:
            answer = MethodNotAllowed(reason, headers=_allowed_methods(request, error))
        case 413:
            answer = PayloadTooLarge("The request body is too large.")
        case _:
            answer = _unreadable(request, error)
    return error_response(answer)


def _allowed_methods(request: Request, error: HTTPException) -> Mapping[str, str] | None:
    """The `allow` header with all methods of the path; Starlette names only those of its first route."""
    path = getattr(request.scope.get("route"), "path_format", "")
    verbs = sorted(verb.upper() for verb in request.app.openapi()["paths"].get(path, ()))
    if not verbs:
        return error.headers
    return {"allow": ", ".join(verbs + ["HEAD"] * ("GET" in verbs))}


def _is_json(request: Request) -> bool:
    return "json" in request.headers.get("content-type", "")


def _unreadable(request: Request, error: HTTPException) -> ServiceError:
    if compressed := compressed_body(request):
        return compressed
    if _is_json(request):
        return invalid_json(unreadable_reason(error.__cause__))
    return InvalidRequest(f"The body cannot be read: {error.detail}", code="invalid_body")


async def _disconnected(_request: Request, _error: Exception) -> JSONResponse:
    return error_response(InvalidRequest("The client disconnected before its request was complete."))


async def _database_down(_request: Request, error: Exception) -> JSONResponse:
    # The exception's own text also holds the statement's parameters.
    log.error("database unavailable", error=str(getattr(error, "orig", None) or error))
    return _retry_later("The database does not respond. Try again later.")


async def _storage_down(_request: Request, error: Exception) -> JSONResponse:
    log.error("storage unavailable", error=str(error))
    if isinstance(error, StorageFull):
        return error_response(_no_space())
    return _retry_later("The storage does not respond. Try again later.")


async def _os_error(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("disk full", error=str(error))
        return error_response(_no_space())
    raise error


def _no_space() -> ServiceError:
    return InsufficientStorage("No space left on the service. Nothing was stored.")


def _retry_later(message: str) -> JSONResponse:
    return error_response(Unavailable(message, headers={"retry-after": str(RETRY_SECONDS)}))
