"""Exception handlers: expected exceptions become responses in OpenAI's error shape.

Boundary: translation only. `middleware.py` logs and answers unknown exceptions.
"""

import errno
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import ProgrammingError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.platform.catalog import CatalogError
from service.platform.db import OUTAGES, is_disk_full, refusal_of
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
from service.web.request_metrics import route_of
from service.web.strict_json import compressed_body, is_json, unreadable_reason
from service.web.validation import invalid_json, invalid_request

log = structlog.get_logger()

HEADERS = {401: {"www-authenticate": "Bearer"}, 409: {"x-should-retry": "false"}}
"""Status → headers. Without this one, OpenAI's client would repeat a request after a 409."""
RETRY_LATER = {"retry-after": "5"}
NO_SPACE = "No space left on the service. Nothing was stored."
Translation = Callable[[Request, Any], ServiceError]


def install(app: FastAPI) -> None:
    """Register all handlers."""
    translations: dict[type[Exception], Translation] = {
        ServiceError: lambda _request, error: error,
        RequestValidationError: _invalid,
        HTTPException: _http_error,
        ClientDisconnect: _disconnected,
        OSError: _os_error,
        StorageError: _storage_error,
        CatalogError: _catalog_error,
        ProgrammingError: _database_refusal,
        **dict.fromkeys(OUTAGES, _database_error),
    }
    for kind, translation in translations.items():
        app.add_exception_handler(kind, _handler(translation))


def error_response(error: ServiceError) -> JSONResponse:
    headers = HEADERS.get(error.status, {}) | error.headers
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def _handler(translation: Translation) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def handle(request: Request, error: Exception) -> JSONResponse:
        return error_response(translation(request, error))

    return handle


def _invalid(request: Request, error: RequestValidationError) -> ServiceError:
    if compressed := compressed_body(request):
        return compressed
    if isinstance(error.body, bytes) and not is_json(request):
        return InvalidRequest("Send the body as application/json.", code="invalid_json")
    expected = getattr(request.scope["route"], "body_field", None)
    return invalid_request(error.errors(), error.body, expected and expected.field_info.annotation)


def _http_error(request: Request, error: HTTPException) -> ServiceError:
    """Starlette's errors: unknown route, wrong method, a body that is too large or unreadable.

    If the service's middleware raised an error while FastAPI read the body, that error is returned.
    """
    if isinstance(error.__cause__, ServiceError):
        return error.__cause__
    reason = f"Unknown route: {request.method} {request.url.path}."
    match error.status_code:
        case 404:
            return NotFound(reason, code="unknown_route")
        case 405:
            return MethodNotAllowed(reason, headers=_allowed_methods(request))
        case 413:
            return PayloadTooLarge("The request body is too large.")
    if compressed := compressed_body(request):
        return compressed
    if is_json(request):
        return invalid_json(unreadable_reason(error.__cause__))
    return InvalidRequest(f"The body cannot be read: {error.detail}", code="invalid_body")


def _allowed_methods(request: Request) -> Mapping[str, str]:
    """The `allow` header with all methods of the path; Starlette names only those of its first route."""
    described = request.app.openapi()["paths"].get(route_of(request.scope), ())
    verbs = sorted(map(str.upper, described)) or ["GET"]  # only pages and their files are not described
    return {"allow": ", ".join(verbs + ["HEAD"] * ("GET" in verbs))}


def _disconnected(_request: Request, _error: ClientDisconnect) -> ServiceError:
    return InvalidRequest("The client disconnected before its request was complete.")


def _database_error(_request: Request, error: Exception) -> ServiceError:
    # the exception's own text also contains the statement's parameters
    log.error("database unavailable", error=str(getattr(error, "orig", None) or error))
    if is_disk_full(error):
        return Unavailable("The disk of the database is full. Its operator must free space.")
    return Unavailable("The database does not respond. Try again later.", headers=RETRY_LATER)


def _database_refusal(_request: Request, error: ProgrammingError) -> ServiceError:
    if (refusal := refusal_of(error)) is None:
        raise error
    log.error("database refuses", error=refusal)
    return Unavailable("The database has another schema or too few rights. Its operator runs `grpo doctor`.")


def _storage_error(_request: Request, error: StorageError) -> ServiceError:
    log.error("storage unavailable", error=str(error))
    if isinstance(error, StorageFull):
        return InsufficientStorage(NO_SPACE)
    return Unavailable("The storage does not respond. Try again later.", headers=RETRY_LATER)


def _catalog_error(_request: Request, error: CatalogError) -> ServiceError:
    # its text contains paths and parts of the file
    log.error("model catalogue unusable", error=str(error))
    return Unavailable("The model catalogue cannot be read or written. Its operator must repair it.")


def _os_error(_request: Request, error: OSError) -> ServiceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("disk full", error=str(error))
        return InsufficientStorage(NO_SPACE)
    raise error
