"""Middleware: request ids, log lines, safe headers, HEAD, slow bodies, and a response to unknown exceptions.

Boundary: plain ASGI, so that streams pass unchanged. Unknown exceptions are caught only here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.platform.errors import InvalidRequest, PayloadTooLarge, ServiceError, TooSlow
from service.platform.ids import new_id
from service.platform.logs import REQUEST
from service.web.error_handlers import error_response
from service.web.request_metrics import RequestMetrics, route_of

log = structlog.get_logger()

MIN_BYTES_PER_SECOND = 4096
PROBES = ("/livez", "/readyz")
_CLOSE = {"connection": "close"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """Gives each HTTP request an id, a metric and a log line; answers unknown exceptions neutrally."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id("req", "_")
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = _Exchange(scope, receive, send)
        token = REQUEST.set(lambda: _facts(scope))
        try:
            await self._run(exchange, scope, receive)
        finally:
            REQUEST.reset(token)

    async def _run(self, exchange: _Exchange, scope: Scope, receive: Receive) -> None:
        started = time.monotonic()
        try:
            await self.app(scope, receive, exchange.send)
        except Exception:
            log.exception("unexpected error")
            if exchange.status:
                raise
            message = (
                f"Internal error. Report this request id to the operator: {scope['state']['request_id']}."
            )
            await exchange.answer(ServiceError(message))
        finally:
            ended = time.monotonic()
            metrics: RequestMetrics = scope["app"].state.request_metrics
            metrics.observe(scope, exchange.status, (exchange.answered_at or ended) - started)
            # a container's health check would fill the log
            level = logging.DEBUG if scope["path"] in PROBES and exchange.status == 200 else logging.INFO
            log.log(level, "request", status=exchange.status, seconds=round(ended - started, 4))


class BodyTimeLimit:
    """Refuses bodies that arrive too slowly, or that state two lengths, which a proxy may read differently.

    A body has `body_grace_seconds`, plus time for each of its bytes. The server or a proxy limits the time
    for headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            message = "Send either Content-Length or Transfer-Encoding."
            refusal = InvalidRequest(message, code="invalid_body", headers=_CLOSE)
            await error_response(refusal)(scope, receive, send)
            return
        grace_seconds = scope["app"].state.settings.body_grace_seconds
        await self.app(scope, _Arrival(receive, grace_seconds).receive, send)


class _Arrival:
    """Receives one body. Its deadline starts with the first read and moves with each byte."""

    def __init__(self, receive: Receive, grace_seconds: float) -> None:
        self._receive = receive
        self._grace_seconds = grace_seconds
        self._deadline: float | None = None
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:  # the next message is the client's disconnect, which streams wait for
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._grace_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise TooSlow("The request body arrives too slowly.", headers=_CLOSE) from error
        self._deadline += len(message.get("body", b"")) / MIN_BYTES_PER_SECOND
        self._is_complete = not message.get("more_body", False)
        return message


class HeadRequests:
    """Answers HEAD with the status and headers of GET, without reading what GET would send."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                await send({"type": "http.response.body", "body": b""})
                raise _HeadSent

        as_get = {**scope, "method": "GET"}
        try:
            await self.app(as_get, receive, send_head)
        except _HeadSent:
            return
        finally:
            # the router has set the route in the copy only
            scope.update({name: as_get[name] for name in ("route", "path_params") if name in as_get})


class _HeadSent(Exception):
    """Ends the response, so that its stream is not read."""


class _Exchange:
    """Sends one response: adds headers and puts the body limit's plain text into the error shape."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status = 0
        self.answered_at = 0.0
        """Monotonic seconds; 0: no response yet."""
        self._scope, self._receive, self._send = scope, receive, send
        self._is_replaced = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if message["status"] == 413 and headers.get("content-type", "").startswith("text/plain"):
                await self.answer(PayloadTooLarge("The request body is too large."))
                self._is_replaced = True
                return
            self.status, self.answered_at = message["status"], time.monotonic()
            headers["x-request-id"] = self._scope["state"]["request_id"]
            headers["x-content-type-options"] = "nosniff"
        if not self._is_replaced:
            await self._send(message)

    async def answer(self, error: ServiceError) -> None:
        """Send a whole response."""
        await error_response(error)(self._scope, self._receive, self.send)


def _facts(scope: Scope) -> dict[str, Any]:
    """Fields of each log line during a request. Never the query, which may contain secrets."""
    principal: Any = scope["state"].get("principal")
    return {
        "request_id": scope["state"]["request_id"],
        "method": scope["method"],
        "path": scope["path"],
        "route": route_of(scope),
        "tenant": getattr(principal, "tenant", None),
        "key_id": getattr(principal, "key_id", None),
    }
