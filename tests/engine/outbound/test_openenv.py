"""The protocol's client against servers that break it: order, redirects, refused addresses."""

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from grpo_engine.outbound import addresses
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import EnvironmentFailure, RefusedAction, Session, open_session
from grpo_engine.outbound.websocket import connect

OBSERVATION = {"type": "observation", "data": {"observation": {"text": "hi"}, "reward": None, "done": False}}
Handler = Callable[[ServerConnection], Awaitable[None]]


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")


def against(handler: Handler, play: Callable[[str], Awaitable[Any]], **options: Any) -> Any:
    """The result of `play(url)` while a WebSocket server runs `handler` for each connection."""

    async def both() -> Any:
        async with serve(handler, "127.0.0.1", 0, **options) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            return await play(f"http://127.0.0.1:{port}")

    return asyncio.run(both())


def answers(*messages: dict[str, Any] | str) -> Handler:
    """Send all messages after the first request, and nothing else."""

    async def handler(connection: ServerConnection) -> None:
        await connection.recv()
        for message in messages:
            await connection.send(message if isinstance(message, str) else json.dumps(message))
        await connection.wait_closed()

    return handler


async def reset_and_step(url: str) -> None:
    session, _ = await open_session(url, {}, timeout_seconds=60.0)
    try:
        await session.step({"message": "a"})
    finally:
        await session.close()


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([OBSERVATION, OBSERVATION], "a message before step was requested"),
        ([{"type": "state", "data": {}}], "answered with state, not an observation"),
        (["Traceback: bug"], 'the answer is not a JSON object: "Traceback: bug"'),
        ([{"type": "observation"}], "has no data"),
        ([{"type": "observation", "data": {"observation": [], "done": False}}], "is not an observation"),
        ([{"type": "observation", "data": {**OBSERVATION["data"], "reward": "1"}}], 'reward "1" is not'),
        ([{"type": "observation", "data": {**OBSERVATION["data"], "reward": 10**400}}], "finite"),
        ([{"type": "error", "data": {"code": "SESSION_ERROR", "message": "gone"}}], "SESSION_ERROR: gone"),
    ],
)
def test_an_answer_that_breaks_the_protocol_fails_the_session(
    messages: list[dict[str, Any] | str], reason: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=reason):
        against(answers(*messages), reset_and_step)


@pytest.mark.usefixtures("allowed")
def test_an_error_without_a_place_is_an_answer_for_the_model() -> None:
    errors = {"code": "VALIDATION_ERROR", "message": "bad", "errors": [{"loc": 5, "msg": "odd"}]}
    with pytest.raises(RefusedAction, match="odd"):
        against(answers(OBSERVATION, {"type": "error", "data": errors}), reset_and_step)


@pytest.mark.usefixtures("allowed")
def test_a_reset_that_the_server_cuts_off_is_tried_again() -> None:
    num_connections = 0

    async def handler(connection: ServerConnection) -> None:
        nonlocal num_connections
        num_connections += 1
        await connection.recv()
        if num_connections == 1:
            connection.transport.abort()
        else:
            await connection.send(json.dumps(OBSERVATION))
            await connection.wait_closed()

    async def reset(url: str) -> str:
        session, observation = await open_session(url, {}, timeout_seconds=60.0)
        await session.close()
        return observation.text

    assert against(handler, reset) == "hi"
    assert num_connections == 2


@pytest.mark.usefixtures("allowed")
def test_a_redirect_is_not_followed() -> None:
    reached = threading.Event()

    def redirect(connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/ws":
            reached.set()
            return None
        response = connection.respond(HTTPStatus.FOUND, "")
        response.headers["Location"] = "/elsewhere"
        return response

    with pytest.raises(EnvironmentFailure, match="redirect"):
        against(answers(OBSERVATION), lambda url: Session.open(url, 60.0), process_request=redirect)
    assert not reached.is_set()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://localhost", "https://10.0.0.1"])
def test_a_private_address_is_refused_before_any_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPO_ALLOWED_HOSTS", raising=False)
    with pytest.raises(RefusedUrl):
        asyncio.run(open_session(url, {}, timeout_seconds=60.0))


def test_a_public_name_that_leads_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "resolve", lambda host, port: ["169.254.169.254"])
    with pytest.raises(RefusedUrl, match="not public"):
        asyncio.run(connect("https://game.example.com/ws", timeout_seconds=60.0, max_bytes=1000))


def test_over_tls_the_name_is_checked_while_the_connection_goes_to_the_address(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "judge.example,other.example")
    # nothing listens on the first address
    monkeypatch.setattr(addresses, "resolve", lambda host, port: ["127.0.0.9", "127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def received_headers(host: str, url: str) -> tuple[str, str | None]:
        port = url.rpartition(":")[2]
        opened = await connect(f"https://{host}:{port}/ws", timeout_seconds=60.0, max_bytes=1000)
        async with opened:
            name, offered = json.loads(await opened.recv())
            return name.removesuffix(f":{port}"), offered

    async def greet(connection: ServerConnection) -> None:
        assert connection.request is not None
        headers = connection.request.headers
        await connection.send(json.dumps([headers["Host"], headers.get("Sec-WebSocket-Extensions")]))

    assert against(greet, lambda url: received_headers("judge.example", url), ssl=context) == (
        "judge.example",
        None,
    )
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
        against(greet, lambda url: received_headers("other.example", url), ssl=context)
