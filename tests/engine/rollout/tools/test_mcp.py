"""Calls of MCP tools: sessions, headers, failures, addresses."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from grpo_engine.config.tools import ListedTool
from grpo_engine.outbound import addresses, mcp_transport
from grpo_engine.outbound.mcp_client import McpFailure, McpServer, McpSessions
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.toolbox import Toolbox, ToolResult
from tests.support.mcp_servers.hostile import HostileServer, respond
from tests.support.mcp_servers.official import ALLOWED, official, served

SECONDS = 60.0
TEXT = {"content": [{"type": "text", "text": "seen"}]}
LOOK = ToolCall("look")


async def plain(message: dict[str, Any], send: Any) -> dict[str, Any]:
    return TEXT


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", ALLOWED)


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with served(official()) as url:
        yield url


def listed(url: str, name: str = "look", **more: Any) -> ListedTool:
    own = {"name": name, "description": "", "parameters": {}}
    return ListedTool(type="mcp", server_url=url, **{"timeout_seconds": SECONDS, **own, **more})


def answers(url: str, *calls: ToolCall, rollout: str = "r", **more: Any) -> list[ToolResult]:
    """The answers to calls of one completion, one after the other."""
    names = {call.name for call in calls}
    with Toolbox([listed(url, name, **more) for name in names]).open() as toolbox:
        return [toolbox.submit(call, {}, "k", rollout).result() for call in calls]


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
    with Toolbox([listed(shop, "count")]).open() as toolbox:
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


@pytest.mark.parametrize(
    ("seconds", "text"), [(SECONDS, "seen"), (8.0, "Error: 127.0.0.1 did not answer within 8 s")]
)
def test_a_failed_call_does_not_change_the_answer_to_another_one_beside_it(seconds: float, text: str) -> None:
    has_failed = threading.Event()

    async def one_fails(message: dict[str, Any], send: Any) -> dict[str, Any] | None:
        if message["params"]["name"] == "broken":
            return await respond(send, b"", status=307, location="/")  # type: ignore[func-returns-value]
        await asyncio.to_thread(has_failed.wait, SECONDS)
        await asyncio.sleep(10 * SECONDS if seconds < SECONDS else 0)
        return TEXT

    server = HostileServer(one_fails)
    with served(server) as url:
        tools = [listed(url, name, timeout_seconds=seconds) for name in ("look", "broken")]
        with Toolbox(tools).open() as toolbox:
            beside, broken = (toolbox.submit(ToolCall(name), {}, "k", "r") for name in ("look", "broken"))
            assert broken.result() == ToolResult("Error: 127.0.0.1: redirects are not followed", failed=True)
            has_failed.set()
            assert beside.result().text == text


def test_a_server_that_dies_in_a_session_is_an_answer() -> None:
    server = HostileServer(plain)
    sessions = McpSessions()
    try:
        with served(server) as url:
            place = McpServer(url, {}, SECONDS)
            assert sessions.call(place, "r", "look", {}) == ("seen", False)
        with pytest.raises(McpFailure, match="no connection"):
            sessions.call(place, "r", "look", {})
    finally:
        sessions.close()


def test_a_session_is_ended_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_transport, "CLOSE_SECONDS", SECONDS)
    server = HostileServer(plain)
    with served(server) as url, Toolbox([listed(url)]).open() as toolbox:
        toolbox.submit(LOOK, {}, "k", "r").result()
        assert not server.ended.is_set()
        toolbox.end("r")
        assert server.ended.wait(60)


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
    monkeypatch.setattr(addresses, "resolve", lambda host, port: ["203.0.113.5", "10.0.0.8"])
    sessions = McpSessions()
    try:
        with pytest.raises(McpFailure, match="an address that is not public"):
            sessions.tools(McpServer("https://rebound.example.com/mcp", {}, SECONDS))
    finally:
        sessions.close()


def test_a_name_is_looked_up_once_for_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([["127.0.0.1"], ["192.0.2.1"]])
    server = HostileServer(plain)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up again"))
    monkeypatch.setattr(addresses, "resolve", lambda host, port: next(found))
    with served(server) as url:
        sessions = McpSessions()
        try:
            place = McpServer(url.replace("127.0.0.1", "localhost"), {}, SECONDS)
            assert [sessions.call(place, "r", "look", {})[0] for _ in range(3)] == ["seen"] * 3
        finally:
            sessions.close()
    assert {headers["host"] for _, headers, _ in server.requests} == {place.url.split("/")[2]}
