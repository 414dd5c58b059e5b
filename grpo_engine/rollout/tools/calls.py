"""Tool calls in a model's text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one or several.

The format of Hermes and Qwen. Boundary: text in, calls out; nothing runs here, and nothing raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.graders.untrusted_json import parse_json

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_END_OF_THINKING = "</think>"
_SHOWN_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    """Empty where the call cannot be read."""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the call cannot be run; the model reads it as the call's answer."""


def find_calls(text: str) -> list[ToolCall]:
    """The calls of one turn, in order; what the model only thought of calling is none.

    A last call without its end tag counts. A call that cannot be read has `error` set.
    """
    said = text.rpartition(_END_OF_THINKING)[2]
    return [_read(match[1]) for match in _CALL.finditer(said)]


def _read(text: str) -> ToolCall:
    try:
        call = parse_json(text)
    except ValueError as error:
        return ToolCall("", error=f"the call is not JSON: {str(error)[:_SHOWN_CHARACTERS]}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", error='a call is {"name": "…", "arguments": {…}}')
    name, arguments = call["name"], call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(name, error="arguments must be a JSON object")
    return ToolCall(name, arguments)


def _parsed(arguments: str) -> Any:
    """OpenAI writes the arguments as a string of JSON."""
    try:
        return parse_json(arguments)
    except ValueError:
        return arguments
