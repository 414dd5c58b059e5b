"""Whatever an MCP server answers to a call, the model gets a text, in bounded time and size."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from grpo_engine.outbound import mcp_transport
from grpo_engine.rollout.tools.toolbox import ToolResult
from tests.engine.rollout.tools.test_mcp import LOOK, SECONDS, TEXT, answers
from tests.support.mcp_servers.hostile import HostileServer, begin, respond, stream, tool
from tests.support.mcp_servers.official import ALLOWED, served


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", ALLOWED)


def hostile_answer(write: Any, seconds: float = SECONDS) -> tuple[ToolResult, HostileServer]:
    """The answer to a call that `write(message, send)` responds to."""

    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await write(message, send)
        return found

    server = HostileServer(answer)
    with served(server) as url:
        (found,) = answers(url, LOOK, timeout_seconds=seconds)
    return found, server


NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 900}}
EVENT = f"event: message\ndata: {json.dumps(NOTE)}\n\n".encode()
TOO_LONG = "Error: 127.0.0.1: the answer is longer than 1048576 bytes"
TOO_LATE = "Error: 127.0.0.1 did not answer within 1.5 s"


async def never(message: dict[str, Any], send: Any) -> None:
    await asyncio.sleep(10 * SECONDS)


async def silent_stream(message: dict[str, Any], send: Any) -> None:
    await stream(send, b": still there\n\n", pause_seconds=0.1)


async def flood_of_events(message: dict[str, Any], send: Any) -> None:
    await stream(send, EVENT)


async def one_endless_event(message: dict[str, Any], send: Any) -> None:
    await stream(send, b"data: " + b"x" * 65_536)


async def endless_json(message: dict[str, Any], send: Any) -> None:
    await begin(send)
    while True:
        await send({"type": "http.response.body", "body": b"[" * 65_536, "more_body": True})
        await asyncio.sleep(0)


async def dripping_json(message: dict[str, Any], send: Any) -> None:
    await begin(send)
    while True:
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.sleep(0.05)


async def bomb(message: dict[str, Any], send: Any) -> None:
    await respond(send, gzip.compress(b" " * 2**24), content_encoding="gzip")


async def elsewhere(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"", status=307, location="http://169.254.169.254/latest/meta-data")


async def here_again(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"", status=307, location="/mcp/")


async def broken(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"{" * 2000)


async def broken_event(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"data: {\n\n", **{"content-type": "text/event-stream"})


async def no_result(message: dict[str, Any], send: Any) -> dict[str, Any]:
    return {}


async def lost_connection(message: dict[str, Any], send: Any) -> None:
    await begin(send, content_length="100")
    await send({"type": "http.response.body", "body": b"{", "more_body": True})
    raise ConnectionError


async def web_page(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"<html>", **{"content-type": "text/html"})


async def failing(message: dict[str, Any], send: Any) -> None:
    await respond(send, b'{"error": "out of order"}', status=500)


async def refusing(message: dict[str, Any], send: Any) -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no such shop"}}
    await respond(send, json.dumps(error).encode(), status=400)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (never, TOO_LATE),
        (silent_stream, TOO_LATE),
        (flood_of_events, TOO_LONG),
        (one_endless_event, TOO_LONG),
        (endless_json, TOO_LONG),
        (dripping_json, TOO_LATE),
        (bomb, "Error: 127.0.0.1: the answer is compressed"),
        (elsewhere, "Error: 127.0.0.1: redirects are not followed"),
        (here_again, "Error: 127.0.0.1: redirects are not followed"),
        (broken, "Error: 127.0.0.1: the answer is not a JSON-RPC message"),
        (broken_event, "Error: 127.0.0.1: the answer is not a JSON-RPC message"),
        (no_result, "Error: 127.0.0.1: the answer is not a valid result of MCP: content: Field required"),
        (lost_connection, "Error: 127.0.0.1: peer closed connection"),
        (web_page, "Error: 127.0.0.1: Unexpected content type: text/html"),
        (failing, "Error: 127.0.0.1: status 500"),
        (refusing, "Error: 127.0.0.1: no such shop"),
    ],
)
def test_whatever_a_server_does_the_answer_is_bounded_in_time_and_size(write: Any, text: str) -> None:
    found, server = hostile_answer(write, 1.5 if text == TOO_LATE else SECONDS)
    assert found.failed
    assert found.text.startswith(text)
    assert len(found.text) < 400
    assert len(server.calls()) <= 1  # never repeated


def test_a_session_that_cannot_be_opened_is_out_of_time() -> None:
    async def stall(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(10 * SECONDS)

    with served(stall) as url:
        (found,) = answers(url, LOOK, timeout_seconds=1.5)
    assert found == ToolResult(TOO_LATE, failed=True)


def test_the_end_of_the_answer_to_a_notification_is_not_waited_for() -> None:
    class Unfinished(HostileServer):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def begun(message: dict[str, Any]) -> None:
                is_body = message["type"] == "http.response.body"
                if is_body and "id" not in self.requests[-1][2] and self.requests[-1][0] == "POST":
                    await asyncio.sleep(10 * SECONDS)
                await send(message)

            await super().__call__(scope, receive, begun)

    async def plain(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return TEXT

    with served(Unfinished(plain)) as url:
        assert answers(url, LOOK) == [ToolResult("seen")]


def test_a_session_receives_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_transport, "MAX_SESSION_BYTES", 5000)

    async def long(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "a" * 3000}]}

    with served(HostileServer(long)) as url:
        texts = [found.text[:60] for found in answers(url, LOOK, LOOK, LOOK, max_output_chars=5000)]
    refused = "Error: 127.0.0.1: the session has received more than 5000 by"
    assert texts == ["a" * 60, refused, "a" * 60]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            {"type": "audio", "data": "AAAA" * 10, "mimeType": "audio/wav"},
            "[audio left out: audio/wav, 30 bytes]",
        ),
        ({"type": "resource", "resource": {"uri": "x:y", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": {"uri": "x:y", "blob": "AAAA"}}, "[resource left out: 3 bytes]"),
        ({"type": "resource_link", "uri": "file:///etc/passwd", "name": "p"}, "[link: file:///etc/passwd]"),
    ],
)
def test_content_other_than_text_becomes_a_note(content: dict[str, Any], text: str) -> None:
    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"content": [content]}

    found, _ = hostile_answer(answer)
    assert found == ToolResult(text)


def test_an_answer_without_text_shows_its_structure_and_is_not_checked_by_the_servers_schema() -> None:
    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any]:
        if message["method"] == "tools/list":
            pattern = {"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}}
            return {"tools": [tool(outputSchema=pattern)]}
        return {"content": [], "structuredContent": {"a": "a" * 40 + "b"}}

    found, server = hostile_answer(answer)
    assert json.loads(found.text) == {"a": "a" * 40 + "b"}
    assert [message["method"] for _, _, message in server.requests if "id" in message] == [
        "initialize",
        "tools/call",
    ]


def test_what_a_server_requests_of_its_client_is_refused() -> None:
    asked = {"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage"}
    asked |= {"params": {"messages": [], "maxTokens": 5}}

    async def ask(message: dict[str, Any], send: Any) -> None:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": TEXT}
        await begin(send, **{"content-type": "text/event-stream"})
        events = [f"event: message\ndata: {json.dumps(each)}\n\n" for each in (asked, answer)]
        await send({"type": "http.response.body", "body": "".join(events).encode()})

    found, server = hostile_answer(ask)
    assert found == ToolResult("seen")
    replies = [message for _, _, message in server.requests if message.get("id") == 7]
    assert all("error" in reply for reply in replies)
