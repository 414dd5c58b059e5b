"""Tool calls in a model's text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one or several.

The format of Hermes and Qwen. Nothing runs here, and nothing raises.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.graders.untrusted_json import parse_json

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
THOUGHTS_END = "</think>"
_SHOWN_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    """Empty if the call cannot be read."""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the call cannot be run; the model gets it as the call's answer."""


def find_calls(text: str) -> list[ToolCall]:
    """The calls of one turn, in order; calls inside the model's thoughts do not count.

    A last call without its end tag counts. A call that cannot be read has `error` set.
    """
    answer = text.rpartition(THOUGHTS_END)[2]
    return [_read(match[1]) for match in _CALL.finditer(answer)]


def _read(text: str) -> ToolCall:
    try:
        call = parse_json(text)
    except ValueError as error:
        return ToolCall("", error=f"the call is not JSON: {str(error)[:_SHOWN_CHARACTERS]}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", error='a call is {"name": "…", "arguments": {…}}')
    name, arguments = call["name"], call.get("arguments", {})
    if isinstance(arguments, str):  # as OpenAI writes them
        with suppress(ValueError):
            arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(name, error="arguments must be a JSON object")
    return ToolCall(name, arguments)
