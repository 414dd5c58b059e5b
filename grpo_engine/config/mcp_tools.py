"""The tools of a job's MCP servers: listed once, checked, and put in place of the servers.

What a server lists is untrusted text that the model reads: names, schemas and sizes have the limits of `http`
tools. References in schemas are never followed outside the schema.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

from pydantic import TypeAdapter, ValidationError

from grpo_engine.config.tools import ListedTool, McpTool, Tool, ToolName, named
from grpo_engine.graders.feedback import excerpt
from grpo_engine.graders.rules.json_schema import check_shown_schema
from grpo_engine.graders.samples import is_deep

MAX_TOOLS, MAX_CHARACTERS = 128, 131_072
"""Maximum number of one server's tools that a model is shown, and of their characters as JSON."""
MAX_DEPTH = 64
LISTING_SECONDS = 15.0
NO_TOOLS = "the model could call none of the server's tools: list at least one, or remove the server"
_name: TypeAdapter[str] = TypeAdapter(ToolName)


@dataclass(frozen=True)
class ToolProblem:
    place: str
    """Path of the field, such as `tools[1].server_url`."""
    reason: str
    unreachable: bool = False
    """Whether the server did not answer, which may be temporary."""


def is_installed() -> bool:
    """Whether the package `mcp` is installed."""
    return find_spec("mcp") is not None


def with_listed_tools(
    tools: Sequence[Tool], special_tokens: Collection[str] = ()
) -> tuple[tuple[Tool, ...], list[ToolProblem]]:
    """The tools with those of each MCP server in its place, and the problems that make the job invalid.

    `special_tokens`: texts that no tool may contain, because they would become tokens with a meaning.
    Raises ImportError without the package `mcp`.
    """
    from grpo_engine.outbound.mcp_client import McpFailure, McpServer, list_tools

    servers = {index: tool for index, tool in enumerate(tools) if isinstance(tool, McpTool)}
    requests = [
        McpServer(each.server_url, each.headers, min(each.timeout_seconds, LISTING_SECONDS))
        for each in servers.values()
    ]
    answers = dict(zip(servers, list_tools(requests), strict=True))
    shown: list[tuple[int, Tool]] = []
    problems: list[ToolProblem] = []
    for index, tool in enumerate(tools):
        answer = answers.get(index)
        if isinstance(answer, McpFailure):
            problems.append(ToolProblem(f"tools[{index}].server_url", str(answer), unreachable=True))
        elif isinstance(tool, McpTool):
            chosen, found = _chosen(index, tool, answer or [], special_tokens)
            shown += [(index, each) for each in chosen]
            problems += found
        else:
            shown.append((index, tool))
    return tuple(tool for _, tool in shown), problems + _conflicts(shown)


def _chosen(
    index: int, server: McpTool, listed: Sequence[dict[str, Any]], special_tokens: Collection[str]
) -> tuple[list[ListedTool], list[ToolProblem]]:
    """The server's allowed tools, and the problems with them."""
    names, allowed = [each["name"] for each in listed], server.allowed_tools
    if missing := [name for name in allowed or () if name not in names]:
        reason = f"the server has no tool {', '.join(missing)}; it has {excerpt(', '.join(sorted(names)))}"
        return [], [ToolProblem(f"tools[{index}].allowed_tools", reason)]
    # sorted, because a server may list them in another order when the job resumes
    chosen = sorted(
        (each for each in listed if allowed is None or each["name"] in allowed), key=itemgetter("name")
    )
    tools, reasons = list[ListedTool](), list[str]() if chosen else [NO_TOOLS]
    size = len(json.dumps(chosen, ensure_ascii=False))
    if len(chosen) > MAX_TOOLS or size > MAX_CHARACTERS:
        limits = f"at most {MAX_TOOLS} with {MAX_CHARACTERS} are shown to a model: set allowed_tools"
        chosen, reasons = [], [f"the server has {len(chosen)} tools with {size} characters, {limits}"]
    for each in chosen:
        try:
            tools.append(ListedTool(**{**dict(server), **_checked(each, special_tokens)}))
        except ValueError as error:
            reasons.append(
                f"the server's tool {excerpt(each['name'])} {error}: leave it out with allowed_tools"
            )
    return tools, [ToolProblem(f"tools[{index}].server_url", reason) for reason in reasons]


def _checked(listed: dict[str, Any], special_tokens: Collection[str]) -> dict[str, Any]:
    """The tool. Raises ValueError if it cannot be shown to a model."""
    try:
        _name.validate_python(listed["name"])
    except ValidationError:
        raise ValueError("has no name that a model can call") from None
    if is_deep(listed["parameters"], MAX_DEPTH):
        raise ValueError(f"has parameters nested deeper than {MAX_DEPTH} levels")
    try:
        check_shown_schema(listed["parameters"])
    except ValueError as error:
        raise ValueError(f"has invalid parameters: {error}") from None
    text = json.dumps(listed, ensure_ascii=False)
    if found := [token for token in special_tokens if json.dumps(token, ensure_ascii=False)[1:-1] in text]:
        raise ValueError(f"contains the special token {found[0]}")
    return listed


def _conflicts(shown: Sequence[tuple[int, Tool]]) -> list[ToolProblem]:
    """Tools of the same name."""
    problems: list[ToolProblem] = []
    first: dict[str, int] = {}
    for index, tool in shown:
        field = "server_url" if isinstance(tool, McpTool) else "name"
        for name in (each.name for each in named([tool])):
            if name in first:
                reason = f"tools[{first[name]}] and tools[{index}] both have a tool {name}"
                problems.append(ToolProblem(f"tools[{index}].{field}", reason))
            first.setdefault(name, index)
    return problems
