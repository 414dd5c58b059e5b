"""Passes one request to the server of its model and its answer back, within time limits.

Boundary: no HTTP framing towards the client (`endpoints.py`), no statements (`repository.py`).
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import httpx
import structlog
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from grpo_engine.chat.protocol import INVALID, Refusal
from grpo_engine.chat.requests import Body
from grpo_engine.serve.protocol import DIED
from service.platform.errors import InvalidRequest, NotFound, ServiceError, Unauthorized, Unavailable
from service.platform.feed import Ending, Feed, Positioned, Subscriber
from service.platform.ids import new_id
from service.serving.repository import ServerState
from service.serving.service import WantedModel

logger = structlog.get_logger()

CLAIM_SECONDS = 60.0
"""Maximum wait for a worker with free capacity."""
TOTAL_SECONDS = 600.0
"""Maximum time of an answer, including loading the model."""
CHECK_SECONDS = 0.5
"""Time between two checks of whether the client is still connected."""
LOADING_SECONDS = 0.05
"""Time between two looks at a model that is being loaded."""
WANT_SECONDS = 3.0
"""Time between two renewals of a request for a worker."""
REASON_SECONDS = 2.0
"""Longest wait for the reason why a server has ended."""
RENEWAL_SECONDS = 5.0
"""A worker that has not renewed its lease for this long has probably ended; it renews every 3 s."""
CONNECT_SECONDS = 3.0
GONE = {"model_not_found", "base_model_changed"}
"""Codes of refusals that apply to every worker."""
LOST = Refusal(code="worker_lost", message="The worker that was answering has stopped. Try again.")
UNREACHABLE = Refusal(
    code="server_unreachable",
    message="The API cannot connect to the worker that serves this model; `grpo doctor` shows its address.",
)


def open_client() -> httpx.AsyncClient:
    """Connections to the servers of models, which use plain HTTP, without the proxies of the environment."""
    # a kept connection may be one to a server that has ended
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    # trusts no certificate, because loading the machine's would take 20 ms
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(trust_env=False, timeout=timeout, limits=limits, verify=tls)


class AnswerFeed(Feed["OpenAnswer", Positioned]):
    """Ends the open answers of revoked keys, and all of them when the service stops."""

    poll_seconds = 0.5

    def read(self, session: Session, seen: Mapping[str, int | None]) -> dict[str, Positioned]:
        return {}


@dataclass(eq=False)
class OpenAnswer(Subscriber[Positioned]):
    """One request. Always `close` it, so that the model stops."""

    feed: AnswerFeed
    http: httpx.AsyncClient
    has_left: Callable[[], Awaitable[bool]]
    """Whether the client has disconnected."""
    tenant: str
    key_id: str
    topic: str = field(default_factory=lambda: new_id("chat"))
    _inbox: asyncio.Queue[bytes | Exception] = field(default_factory=asyncio.Queue)
    """Bytes of the answer; empty bytes or an error are the end."""
    _task: asyncio.Task[None] | None = None
    _started_at: float = field(default_factory=time.monotonic)
    _about: dict[str, str] = field(default_factory=dict)

    def deliver(self, update: Positioned) -> None:
        """The feed has no updates."""

    def end(self, ending: Ending) -> None:
        if ending is Ending.KEY_INVALID:
            error: ServiceError = Unauthorized("This API key was revoked or has expired.")
        else:
            error = Unavailable("The service is restarting. Try again.", code="service_stopping")
        self._inbox.put_nowait(error)

    def send(self, model: WantedModel, path: str, body: Body) -> None:
        """Start finding the server and reading its answer."""
        self._about = {"tenant": self.tenant, "model": model.name, "ended": "client left"}
        self.feed.subscribe(self)
        self._task = asyncio.create_task(self._read(model, path, body.model_dump_json(exclude_unset=True)))

    def close(self) -> None:
        """Cancel what is left of the request, and log its end without its text."""
        if self._task is not None:
            self._task.cancel()
            self.feed.unsubscribe(self)
            seconds = round(time.monotonic() - self._started_at, 2)
            logger.info("request answered", **self._about, seconds=seconds)

    async def pieces(self) -> AsyncGenerator[bytes | None]:
        """Yields bytes as they arrive, and None after CHECK_SECONDS without any.

        Raises ServiceError, and ClientDisconnect if the client disconnects.
        """
        while True:
            try:
                piece = await asyncio.wait_for(self._inbox.get(), CHECK_SECONDS)
            except TimeoutError:
                if await self.has_left():
                    raise ClientDisconnect from None
                if time.monotonic() - self._started_at > TOTAL_SECONDS:
                    message = f"The answer was not complete after {TOTAL_SECONDS:g} s. Lower max_tokens."
                    raise _timeout(message) from None
                yield None
                continue
            if isinstance(piece, Exception):
                self._about["ended"] = piece.code if isinstance(piece, ServiceError) else type(piece).__name__
                raise piece
            if not piece:
                self._about["ended"] = "answered"
                return
            yield piece

    async def _read(self, model: WantedModel, path: str, body: str) -> None:
        """Put the answer, or the reason why there is none, into the inbox."""
        last: bytes | Exception = b""
        try:
            while not await self._copy(await self._server(model), model, path, body):
                pass
        except Exception as error:  # noqa: BLE001 - raised where the inbox is read
            last = error
        self._inbox.put_nowait(last)

    async def _copy(self, server: ServerState, model: WantedModel, path: str, body: str) -> bool:
        """Copy the server's answer. False: the server has ended before it. Raises ServiceError."""
        headers = {"authorization": f"Bearer {server.secret}", "content-type": "application/json"}
        sending = self.http.stream("POST", f"{server.address}{path}", content=body, headers=headers)
        has_begun = False
        try:
            async with sending as response:
                if response.status_code != httpx.codes.OK:
                    raise error_of(_refusal(response.status_code, await response.aread()))
                async for piece in response.aiter_raw():
                    has_begun = True
                    self._inbox.put_nowait(piece)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if await _is_renewed(model, server):
                raise error_of(UNREACHABLE) from None
            return False
        except httpx.TransportError:
            reason = await _reason(model, server)
            if reason is None and not has_begun:
                return False
            raise error_of(reason or DIED) from None
        return True

    async def _server(self, model: WantedModel) -> ServerState:
        """The server of the model, as soon as it is loaded. Raises ServiceError."""
        found = await run_in_threadpool(model.server)
        is_new, wanted_at = True, 0.0
        while found is None or not found.is_served:
            now = time.monotonic()
            if found is not None and found.refusal is not None and not is_new:
                raise error_of(Refusal.model_validate(found.refusal))
            if now - self._started_at > CLAIM_SECONDS and not (found and found.is_held):
                raise _timeout(
                    f"No worker was free for the request within {CLAIM_SECONDS:g} s. Try again later."
                )
            if now - wanted_at > WANT_SECONDS:
                await run_in_threadpool(model.want, is_new=is_new)
                wanted_at, is_new = now, False
            else:
                await asyncio.sleep(LOADING_SECONDS)
            found = await run_in_threadpool(model.server)
        return found


async def _is_renewed(model: WantedModel, server: ServerState) -> bool:
    """Whether its worker is alive and keeps the model at the same address.

    If the worker was killed, another one serves the model after the lease has expired.
    """
    until = time.monotonic() + RENEWAL_SECONDS
    while time.monotonic() < until:
        found = await run_in_threadpool(model.server)
        if found is None or (found.fence, found.address) != (server.fence, server.address):
            return False
        if not found.is_held or found.lease_expires_at != server.lease_expires_at:
            return found.is_held
        await asyncio.sleep(LOADING_SECONDS)
    return False


async def _reason(model: WantedModel, server: ServerState) -> Refusal | None:
    """Why a server has ended, which its worker writes; LOST if it does not.

    None: an idle model was unloaded for another one, perhaps before its worker knew of the request.
    """
    until = time.monotonic() + REASON_SECONDS
    while time.monotonic() < until:
        found = await run_in_threadpool(model.server)
        if found is None or found.fence != server.fence:
            return DIED
        if found.address != server.address:
            return None if found.refusal is None else Refusal.model_validate(found.refusal)
        await asyncio.sleep(LOADING_SECONDS)
    return LOST


def _refusal(status: int, body: bytes) -> Refusal:
    """The error of a server's response."""
    if status == httpx.codes.UNAUTHORIZED:  # another process has got its address
        return LOST
    try:
        error = json.loads(body)["error"]
        return Refusal(code=error["code"], message=error["message"], param=error["param"])
    except (ValueError, KeyError, TypeError):
        return Refusal(code="worker_busy", message="The model's server is busy; try again.")


def _timeout(message: str) -> ServiceError:
    """A timeout that clients do not retry automatically, because they would wait just as long again."""
    return Unavailable(message, code="generation_timeout", headers={"x-should-retry": "false"})


def error_of(refusal: Refusal) -> ServiceError:
    """The service's error for a refusal of the worker or of its server."""
    if refusal.code in GONE:
        return NotFound(refusal.message, param=refusal.param, code=refusal.code)
    if refusal.code in INVALID:
        return InvalidRequest(refusal.message, param=refusal.param, code=refusal.code)
    if refusal.code == "generation_timeout":
        return _timeout(refusal.message)
    return Unavailable(refusal.message, param=refusal.param, code=refusal.code)
