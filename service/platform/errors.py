"""The service's error tree: a status, a type and a stable code each, in OpenAI's error shape.

The docstrings are the descriptions in `/openapi.json`.
Boundary: plain Python, so that the worker may use it; `web/error_handlers.py` turns errors into responses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

REQUEST = "invalid_request_error"


class ServiceError(Exception):
    """The reason why a request failed, without anything that the client must not see."""

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"

    def __init_subclass__(cls, status: int = 0, type: str = "", code: str = "") -> None:
        """Set the class's status, type and code; those that are left out are inherited."""
        cls.status, cls.type, cls.code = status or cls.status, type or cls.type, code or cls.code

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
        """The response: `{"error": {message, type, param, code}}`."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}


class InvalidRequest(ServiceError, status=400, type=REQUEST, code="invalid_value"):
    """The request is wrong; `param` names the field."""

    problems: Sequence[Mapping[str, str | int]] = ()
    """If there can be several: `param` and `message` of each, and how many are alike (`alike`)."""

    def body(self) -> dict[str, Any]:
        body = super().body()
        return {"error": {**body["error"], "problems": list(self.problems)}} if self.problems else body


class Unauthorized(ServiceError, status=401, type="authentication_error", code="invalid_api_key"):
    """The API key is missing, invalid, revoked or expired."""


class Forbidden(ServiceError, status=403, type="permission_error", code="insufficient_scope"):
    """The API key lacks the scope."""


class NotFound(ServiceError, status=404, type=REQUEST, code="not_found"):
    """It does not exist, or belongs to another tenant."""


class MethodNotAllowed(ServiceError, status=405, type=REQUEST, code="method_not_allowed"):
    """The path has other methods."""


class TooSlow(ServiceError, status=408, type=REQUEST, code="request_timeout"):
    """The body arrived too slowly."""


class Conflict(ServiceError, status=409, type=REQUEST, code="conflict"):
    """The object's state, or another object that needs it, forbids the change; see `code`."""


class PayloadTooLarge(ServiceError, status=413, type=REQUEST, code="payload_too_large"):
    """The body is too large."""


class RangeNotSatisfiable(ServiceError, status=416, type=REQUEST, code="range_not_satisfiable"):
    """The range is outside the object."""


class Unprocessable(ServiceError, status=422, type=REQUEST, code="unprocessable"):
    """The Idempotency-Key was used with another body, or a base model or a package is missing; see `code`."""


class TooManyRequests(ServiceError, status=429, type="rate_limit_error", code="quota_exceeded"):
    """A limit of the tenant or the service is reached; `Retry-After` says when to retry."""


class Unavailable(ServiceError, status=503, type="server_error", code="unavailable"):
    """Database or storage does not respond or has a full disk, or the model catalogue cannot be read."""


class InsufficientStorage(ServiceError, status=507, type="server_error", code="insufficient_storage"):
    """No space left; nothing was stored."""
