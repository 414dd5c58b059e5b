"""The service's error tree: a status, a type and a stable code each, answered in OpenAI's error shape.

ServiceError
├── InvalidRequest       400  the request itself is wrong; `param` names the field
├── Unauthorized         401  no key, or not a valid one
├── Forbidden            403  the key lacks the scope
├── NotFound             404  it does not exist, or belongs to somebody else
├── MethodNotAllowed     405
├── TooSlow              408  the body arrives too slowly
├── PayloadTooLarge      413
├── RangeNotSatisfiable  416
├── Unprocessable        422  understood, but impossible: another body under a key, a base model that is gone
├── TooManyRequests      429  a quota
├── Unavailable          503  the database or the storage does not answer
└── InsufficientStorage  507  the disk is full

Boundary: plain Python, so that the worker may use it; `web/error_handlers.py` turns errors into responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ServiceError(Exception):
    """What a client may know about why its request failed."""

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The answer's JSON: `{"error": {message, type, param, code}}`."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}


class InvalidRequest(ServiceError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    problems: Sequence[Mapping[str, str]] = ()
    """`param` and `message` of each, where a request may have several; answered beside the first."""

    def body(self) -> dict[str, Any]:
        body = super().body()
        return {"error": {**body["error"], "problems": list(self.problems)}} if self.problems else body


class Unauthorized(ServiceError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ServiceError):
    status = 403
    type = "permission_error"
    code = "insufficient_scope"


class NotFound(ServiceError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(ServiceError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class TooSlow(ServiceError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class PayloadTooLarge(ServiceError):
    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class RangeNotSatisfiable(ServiceError):
    status = 416
    type = "invalid_request_error"
    code = "range_not_satisfiable"


class Unprocessable(ServiceError):
    status = 422
    type = "invalid_request_error"
    code = "unprocessable"


class TooManyRequests(ServiceError):
    status = 429
    type = "rate_limit_error"
    code = "quota_exceeded"


class Unavailable(ServiceError):
    status = 503
    type = "server_error"
    code = "unavailable"


class InsufficientStorage(ServiceError):
    status = 507
    type = "server_error"
    code = "insufficient_storage"
