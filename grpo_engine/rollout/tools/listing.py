"""The tools of a job's MCP servers, listed once when the engine starts."""

import time
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from grpo_engine.config.mcp_tools import ToolProblem, is_installed, with_listed_tools
from grpo_engine.config.tools import McpTool, Tool
from grpo_engine.contract.errors import ConfigError, EndpointDownError
from grpo_engine.parallel.ranks import Ranks

PAUSES_SECONDS = (1.0, 4.0, 15.0, 30.0, 0.0)
"""Pauses after each attempt to list the tools of a server that does not answer; it may be restarting."""

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
