"""The tools of a job's MCP servers, listed once when the engine starts, and their changes since then."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from grpo_engine.config.mcp_tools import ToolProblem, is_installed, with_listed_tools
from grpo_engine.config.tools import ListedTool, McpTool, Tool, function_schemas
from grpo_engine.contract.errors import ConfigError, EndpointDownError
from grpo_engine.contract.events import Warned
from grpo_engine.parallel.ranks import Ranks

PAUSES_SECONDS = (1.0, 4.0, 15.0, 30.0, 0.0)
"""Pauses after each attempt to list the tools of a server that does not answer; it may be restarting."""

MAX_SHOWN_CHARACTERS = 500
"""Maximum characters of the tools' names in a warning."""

SERVER_HINT = "Check that the MCP server runs and lists the tools, then submit the job again."


def listed_tools(tools: tuple[Tool, ...], tokenizer: PreTrainedTokenizerBase) -> tuple[Tool, ...]:
    """The tools with those of each MCP server in its place. All ranks use the list of the first one.

    Raises EndpointDownError if a server does not answer, ConfigError if its tools cannot be used.
    """
    if not any(isinstance(tool, McpTool) for tool in tools):
        return tools
    if not is_installed():
        hint = "Install it on the worker: pip install 'grpo-service[mcp]'."
        raise ConfigError("mcp tools need the package mcp, which is not installed", hint=hint)
    ranks = Ranks.current()
    special = [each.content for each in tokenizer.added_tokens_decoder.values() if each.special]
    found, problems = ranks.gather(_patiently(tools, special) if ranks.is_first else None)[0] or ((), [])
    if problems:
        kind = EndpointDownError if problems[0].unreachable else ConfigError
        message = "; ".join(f"{each.place}: {each.reason}" for each in problems[:3])
        raise kind(message, hint=SERVER_HINT)
    return found


def _patiently(
    tools: Sequence[Tool], special_tokens: Sequence[str]
) -> tuple[tuple[Tool, ...], list[ToolProblem]]:
    for pause in PAUSES_SECONDS:
        found, problems = with_listed_tools(tools, special_tokens)
        if not any(problem.unreachable for problem in problems):
            break
        time.sleep(pause)
    return found, problems


def digests_of(tools: Sequence[Tool]) -> dict[str, str]:
    """Name → SHA-256 of what the model is shown of each tool that an MCP server listed."""
    shown = function_schemas([tool for tool in tools if isinstance(tool, ListedTool)])
    return {each["function"]["name"]: hashlib.sha256(json.dumps(each).encode()).hexdigest() for each in shown}


def changed_tools(before: Mapping[str, str], now: Mapping[str, str]) -> list[Warned]:
    """A warning if the MCP servers list other tools than before; both are from `digests_of`."""
    changed = {name for name in before.keys() & now.keys() if before[name] != now[name]}
    kinds = {"added": now.keys() - before.keys(), "removed": before.keys() - now.keys(), "changed": changed}
    found = "; ".join(f"{kind}: {', '.join(sorted(names))}" for kind, names in kinds.items() if names)
    if not found:
        return []
    message = (
        f"The MCP servers list other tools than before the checkpoint ({found[:MAX_SHOWN_CHARACTERS]}). "
        "The following steps use the new ones, so their result differs from that of an uninterrupted run."
    )
    return [Warned(code="tools_changed", message=message)]
