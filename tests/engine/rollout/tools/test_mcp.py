"""Tools of MCP servers: a real server, and servers that do what they must not."""

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from grpo_engine.config.mcp_tools import with_listed_tools
from grpo_engine.config.tools import ListedTool, McpTool, PythonTool, function_schemas
from grpo_engine.outbound import mcp_transport
from grpo_engine.outbound.mcp_client import McpFailure, McpServer, McpSessions
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.toolbox import Toolbox, ToolResult
from tests.support.mcp_servers import ALLOWED, HostileServer, begin, official, respond, served, stream, tool

SECONDS = 1.5


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", ALLOWED)


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with served(official()) as url:
        yield url


def mcp(url: str, **more: Any) -> McpTool:
    return McpTool(type="mcp", server_url=url, **{"timeout_seconds": SECONDS, **more})


def listed(url: str, name: str = "look", **more: Any) -> ListedTool:
    own = {"name": name, "description": "", "parameters": {}}
    return ListedTool(type="mcp", server_url=url, **{"timeout_seconds": SECONDS, **own, **more})


def answers(url: str, *calls: ToolCall, rollout: str = "r", **more: Any) -> list[ToolResult]:
    """The answers to calls of one completion, one after the other."""
    names = {call.name for call in calls}
    with Toolbox([listed(url, name, **more) for name in names]).open() as toolbox:
        return [toolbox.submit(call, {}, "k", rollout).result() for call in calls]


def problems(url: str, special: tuple[str, ...] = (), **more: Any) -> list[tuple[str, str]]:
    _, found = with_listed_tools([mcp(url, **more)], special)
    return [(each.place, each.reason) for each in found]


# an official server


def test_a_servers_tools_take_its_place_with_their_schemas(shop: str) -> None:
    python = PythonTool(type="python")
    tools, found = with_listed_tools([python, mcp(shop, allowed_tools=["add", "draw"])])
    assert found == []
    (_, first, second) = function_schemas(tools)
    assert first["function"]["description"] == "Add two numbers."
    assert first["function"]["parameters"]["required"] == ["a"]
    assert second["function"]["name"] == "draw"
    assert function_schemas([python, mcp(shop)]) == function_schemas([python])


def test_a_call_is_answered_with_its_text(shop: str) -> None:
    calls = [ToolCall("add", {"a": 3, "b": 4}), ToolCall("break_down"), ToolCall("draw")]
    assert answers(shop, *calls) == [
        ToolResult("7"),
        ToolResult("Error: Error executing tool break_down", failed=True),
        ToolResult("a dot\n[image left out: image/png, 120 bytes]"),
    ]


def test_wrong_arguments_and_unknown_names_are_answers_and_keep_the_session(shop: str) -> None:
    calls = [ToolCall("count"), ToolCall("add", {"a": "x"}), ToolCall("nothing"), ToolCall("count")]
    first, wrong, unknown, second = answers(shop, *calls)
    assert (first.text, second.text) == ("1", "2")
    assert wrong.failed
    assert "Input should be a valid integer" in wrong.text
    assert unknown == ToolResult("Error: Unknown tool: nothing", failed=True)


def test_each_completion_has_a_session_and_headers_of_its_own(shop: str) -> None:
    headers = {"Authorization": "Bearer k", "X-Rollout-Id": "forged"}
    with Toolbox([listed(shop, name, headers=headers) for name in ("count", "seen")]).open() as toolbox:

        def ask(rollout: str, called: str, **arguments: str) -> str:
            return toolbox.submit(ToolCall(called, arguments), {}, "k", rollout).result().text

        assert [ask("a", "count"), ask("b", "count"), ask("a", "count")] == ["1", "1", "2"]
        assert ask("b", "seen", name="x-rollout-id") == "b"
        assert ask("b", "seen", name="authorization") == "Bearer k"
        toolbox.end("a")
        assert [ask("a", "count"), ask("b", "count")] == ["1", "2"]


def test_the_first_calls_of_many_completions_run_side_by_side(shop: str) -> None:
    with Toolbox([listed(shop, "count", timeout_seconds=20)]).open() as toolbox:
        futures = [toolbox.submit(ToolCall("count"), {}, "k", f"r{n % 20}") for n in range(40)]
        assert sorted(future.result().text for future in futures) == ["1"] * 20 + ["2"] * 20


def test_a_server_that_lost_its_sessions_is_an_answer_and_the_next_call_opens_a_new_one() -> None:
    lost = [False]

    async def forget(message: dict[str, Any], send: Any) -> dict[str, Any] | None:
        if lost[0]:
            lost[0] = False
            return await respond(send, b"", status=404)  # type: ignore[func-returns-value]
        return TEXT

    server = HostileServer(forget)
    with served(server) as url, Toolbox([listed(url)]).open() as toolbox:

        def ask() -> ToolResult:
            return toolbox.submit(LOOK, {}, "k", "r").result()

        assert ask() == ToolResult("seen")
        lost[0] = True
        assert ask() == ToolResult("Error: 127.0.0.1: Session terminated", failed=True)
        assert ask() == ToolResult("seen")
    opened = [message for _, _, message in server.requests if message.get("method") == "initialize"]
    assert len(opened) == 2


def test_a_server_that_dies_in_a_session_is_an_answer() -> None:
    server = HostileServer(plain)
    sessions = McpSessions()
    try:
        with served(server) as url:
            place = McpServer(url, {}, SECONDS)
            assert sessions.call(place, "r", "look", {}).text == "seen"
        with pytest.raises(McpFailure, match="no connection"):
            sessions.call(place, "r", "look", {})
    finally:
        sessions.close()


def test_a_session_is_ended_at_the_server() -> None:
    server = HostileServer(plain)
    with served(server) as url, Toolbox([listed(url)]).open() as toolbox:
        toolbox.submit(LOOK, {}, "k", "r").result()
        assert not server.ended.is_set()
        toolbox.end("r")
        assert server.ended.wait(10)


# servers that do what they must not

TEXT = {"content": [{"type": "text", "text": "seen"}]}
LOOK = ToolCall("look")


async def plain(message: dict[str, Any], send: Any) -> dict[str, Any]:
    return TEXT


def hostile_answer(write: Any) -> tuple[ToolResult, HostileServer]:
    """The answer to a call that `write(message, send)` responds to."""

    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await write(message, send)
        return found

    server = HostileServer(answer)
    with served(server) as url:
        (found,) = answers(url, LOOK)
    return found, server


NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 900}}
EVENT = f"event: message\ndata: {json.dumps(NOTE)}\n\n".encode()
TOO_LONG = "Error: 127.0.0.1: the answer is longer than 1048576 bytes"
TOO_LATE = "Error: 127.0.0.1 did not answer within 1.5 s"


async def never(message: dict[str, Any], send: Any) -> None:
    await asyncio.sleep(60)


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


async def web_page(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"<html>", **{"content-type": "text/html"})


async def failing(message: dict[str, Any], send: Any) -> None:
    await respond(send, b"", status=500)


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
        (broken, "Error: 127.0.0.1: Failed to parse JSON response:"),
        (web_page, "Error: 127.0.0.1: Unexpected content type: text/html"),
        (failing, "Error: 127.0.0.1: Server returned an error response"),
    ],
)
def test_whatever_a_server_does_is_an_answer_in_bounded_time_and_size(write: Any, text: str) -> None:
    found, server = hostile_answer(write)
    assert found.failed
    assert found.text.startswith(text)
    assert len(found.text) < 400
    assert len(server.calls()) == 1


def test_a_session_that_cannot_be_opened_is_out_of_time() -> None:
    async def stall(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(60)

    with served(stall) as url:
        (found,) = answers(url, LOOK)
    assert found == ToolResult(TOO_LATE, failed=True)


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
def test_what_is_no_text_is_a_note(content: dict[str, Any], text: str) -> None:
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


# addresses


def test_a_server_that_is_not_allowed_gets_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HostileServer(plain)
    with served(server) as url:
        place = listed(url)
        monkeypatch.delenv("GRPO_ALLOWED_HOSTS")
        with Toolbox([place]).open() as toolbox:
            found = toolbox.submit(LOOK, {}, "k", "r").result()
    assert found == ToolResult("Error: not https", failed=True)
    assert server.requests == []


def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPO_ALLOWED_HOSTS")
    sessions = McpSessions(lambda host, port: ["203.0.113.5", "10.0.0.8"])
    try:
        with pytest.raises(McpFailure, match="an address that is not public"):
            sessions.tools(McpServer("https://rebound.example.com/mcp", {}, SECONDS))
    finally:
        sessions.close()


def test_a_name_is_looked_up_once_for_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([["127.0.0.1"], ["192.0.2.1"]])
    server = HostileServer(plain)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up again"))
    with served(server) as url:
        sessions = McpSessions(lambda host, port: next(found))
        try:
            place = McpServer(url.replace("127.0.0.1", "localhost"), {}, SECONDS)
            assert [sessions.call(place, "r", "look", {}).text for _ in range(3)] == ["seen"] * 3
        finally:
            sessions.close()
    assert {headers["host"] for _, headers, _ in server.requests} == {place.url.split("/")[2]}


# what a server lists


def lists(*tools: dict[str, Any]) -> HostileServer:
    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": list(tools)}

    return HostileServer(answer)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


URL_REF = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "a b"}, 'tool "a b" has no name that a model can call'),
        ({"name": "x" * 300}, "has no name that a model can call"),
        ({"inputSchema": URL_REF}, "must be # or #/… and lead to a subschema"),
        ({"inputSchema": {"type": "object", "properties": 3}}, "Input should be a valid dictionary"),
        ({"inputSchema": {"type": "object", "minProperties": "x"}}, "has invalid parameters"),
        ({"inputSchema": nested(40)}, "nested deeper than 64 levels"),
        ({"inputSchema": nested(400)}, "127.0.0.1: "),
        ({"inputSchema": {"type": "object", "title": "x" * 40_000}}, "at most 32768 characters"),
        ({"inputSchema": {"type": "object", "pattern": "(a"}}, "has invalid parameters"),
        ({"description": "x" * 200_000}, "at most 128 with 131072 are shown to a model"),
        ({"description": "end <|im_end|> of turn"}, "contains the special token <|im_end|>"),
        ({"inputSchema": {"type": "object", "title": '<|"|>'}}, 'contains the special token <|"|>'),
    ],
)
def test_a_tool_that_no_model_can_be_shown_is_a_problem(changed: dict[str, Any], reason: str) -> None:
    with served(lists(tool("fine"), tool(**changed))) as url:
        ((place, found),) = problems(url, ("<|im_end|>", '<|"|>'), timeout_seconds=10)
        assert place == "tools[0].server_url"
        assert reason in found
        assert len(found) < 500


def test_a_recursive_schema_is_shown_as_it_is() -> None:
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    with served(lists(tool(inputSchema=schema))) as url:
        tools, found = with_listed_tools([mcp(url)])
    assert (found, function_schemas(tools)[0]["function"]["parameters"]) == ([], schema)


def test_thousands_of_tools_are_refused_and_a_few_of_them_can_be_allowed() -> None:
    with served(lists(*[tool(f"t{n}") for n in range(900)])) as url:
        ((_, reason),) = problems(url)
        assert "the server has 900 tools" in reason
        tools, found = with_listed_tools([mcp(url, allowed_tools=["t3", "t899"])])
        assert ([each["function"]["name"] for each in function_schemas(tools)], found) == (["t3", "t899"], [])
    with served(lists(*[tool(f"t{n}") for n in range(1001)])) as url:
        assert problems(url) == [("tools[0].server_url", "127.0.0.1: more than 1000 tools")]


def test_pages_without_an_end_are_out_of_time() -> None:
    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": [], "nextCursor": "again"}

    with served(HostileServer(answer)) as url:
        ((_, reason),) = problems(url)
    assert "did not answer within 1.5 s" in reason


def test_missing_tools_and_two_of_one_name_are_problems(shop: str) -> None:
    ((place, reason),) = problems(shop, allowed_tools=["add", "divide"])
    assert (place, reason.split(";")[0]) == ("tools[0].allowed_tools", "the server has no tool divide")
    python = PythonTool(type="python", name="add")
    _, found = with_listed_tools(
        [mcp(shop, allowed_tools=["draw"]), python, mcp(shop, allowed_tools=["add"])]
    )
    assert [(each.place, each.reason) for each in found] == [
        ("tools[2].server_url", "tools[1] and tools[2] both have a tool add")
    ]


def test_servers_are_listed_side_by_side_and_each_has_its_problem(shop: str) -> None:
    with served(HostileServer(never)) as slow:
        tools, found = with_listed_tools([mcp(slow), mcp(slow), mcp(shop, allowed_tools=["add"])])
    assert [(each.place, each.unreachable) for each in found] == [
        ("tools[0].server_url", True),
        ("tools[1].server_url", True),
    ]
    assert [each["function"]["name"] for each in function_schemas(tools)] == ["add"]
