"""What an MCP server lists is checked before a model is shown it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from grpo_engine.config.mcp_tools import with_listed_tools
from grpo_engine.config.tools import McpTool, PythonTool, function_schemas
from tests.support.mcp_servers.hostile import HostileServer, tool
from tests.support.mcp_servers.official import ALLOWED, official, served

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", ALLOWED)


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with served(official()) as url:
        yield url


def mcp(url: str, **more: Any) -> McpTool:
    return McpTool(type="mcp", server_url=url, **{"timeout_seconds": SECONDS, **more})


def problems(url: str, special: tuple[str, ...] = (), **more: Any) -> list[tuple[str, str]]:
    _, found = with_listed_tools([mcp(url, **more)], special)
    return [(each.place, each.reason) for each in found]


def test_a_servers_tools_take_its_place_with_their_schemas(shop: str) -> None:
    python = PythonTool(type="python")
    tools, found = with_listed_tools([python, mcp(shop, allowed_tools=["add", "draw"])])
    assert found == []
    (_, first, second) = function_schemas(tools)
    assert first["function"]["description"] == "Add two numbers."
    assert first["function"]["parameters"]["required"] == ["a"]
    assert second["function"]["name"] == "draw"
    assert function_schemas([python, mcp(shop)]) == function_schemas([python])


def lists(*tools: dict[str, Any]) -> HostileServer:
    async def answer(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": list(tools)}

    return HostileServer(answer)


def test_a_server_without_a_tool_that_the_model_may_call_is_a_problem(shop: str) -> None:
    reason = "the model could call none of the server's tools: list at least one, or remove the server"
    assert problems(shop, allowed_tools=[]) == [("tools[0].server_url", reason)]
    with served(lists()) as url:
        assert problems(url) == [("tools[0].server_url", reason)]


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
        ({"inputSchema": {"type": "object", "pattern": 3}}, "has invalid parameters"),
        ({"description": "x" * 200_000}, "at most 128 with 131072 are shown to a model"),
        ({"description": "end <|im_end|> of turn"}, "contains the special token <|im_end|>"),
        ({"inputSchema": {"type": "object", "title": '<|"|>'}}, 'contains the special token <|"|>'),
    ],
)
def test_a_tool_that_cannot_be_shown_to_a_model_is_a_problem(changed: dict[str, Any], reason: str) -> None:
    with served(lists(tool("fine"), tool(**changed))) as url:
        ((place, found),) = problems(url, ("<|im_end|>", '<|"|>'), timeout_seconds=SECONDS)
        assert place == "tools[0].server_url"
        assert reason in found
        assert len(found) < 500


@pytest.mark.parametrize(
    "properties",
    [
        {"child": {"$ref": "#"}},
        {"email": {"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)\S+@\S+$"}},
        {"headers": {"type": "object", "patternProperties": {"^X-": {"type": "string"}}}},
        {"at": {"$anchor": "at", "$id": "https://example.com/at", "type": "string"}},
    ],
)
def test_a_schema_is_shown_unchanged_although_no_grader_could_check_it(properties: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": properties}
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
        ((_, reason),) = problems(url, timeout_seconds=1.5)
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


async def never(message: dict[str, Any], send: Any) -> None:
    await asyncio.sleep(10 * SECONDS)


def test_servers_are_listed_side_by_side_and_each_has_its_problem(shop: str) -> None:
    with served(HostileServer(never)) as slow:
        tools, found = with_listed_tools(
            [*[mcp(slow, timeout_seconds=1)] * 2, mcp(shop, allowed_tools=["add"])]
        )
    assert [(each.place, each.unreachable) for each in found] == [
        ("tools[0].server_url", True),
        ("tools[1].server_url", True),
    ]
    assert [each["function"]["name"] for each in function_schemas(tools)] == ["add"]
