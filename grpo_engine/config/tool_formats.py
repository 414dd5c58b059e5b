"""How models write tool calls: the formats that can be read, and which of them a chat template writes.

Boundary: text and patterns only. `rollout/tools/calls.py` reads calls.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

THOUGHTS_END = "</think>"
FUNCTION = "probe_function"
QUESTION = {"role": "user", "content": "question"}


class UnreadableFormat(ValueError):
    """A chat template writes tool calls in a format that cannot be read."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format. `content` and `options` are a content parser of transformers' response templates."""

    name: str
    families: str
    example: str
    opening: str
    """Pattern of a call's start. Its group `name` is the function's name, which a malformed call lacks."""
    closing: str
    content: Literal["json", "xml-inline", "objects"] = "json"
    """`objects`: JSON objects without tags around them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    is_named_inside: bool = False
    """The JSON holds name and arguments instead of the arguments alone."""
    thoughts_end: str = THOUGHTS_END
    leads: tuple[str, ...] = ()
    """Marks before a turn's first call, the nearest first, which are not part of the turn's text."""


def _tags(pattern: str) -> dict[str, Any]:
    """Arguments as text between tags; the tool's schema gives them their types."""
    return {"tag_pattern": pattern, "value_parser": {"name": "text", "args": {"strip": False}}}


HERMES = ToolFormat(
    "hermes",
    "Hermes, Qwen2.5, Qwen3",
    '<tool_call>{"name": "…", "arguments": {…}}</tool_call>',
    r'<tool_call>\s*(?=(?:\{\s*"name"\s*:\s*"(?P<name>[^"]*)")?)',
    r"</tool_call>",
    is_named_inside=True,
)
FORMATS = (
    ToolFormat(
        "xml",
        "Qwen3.5 and later, Qwen3-Coder, Nemotron 3",
        "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>",
        r"<tool_call>\s*(?:<function=(?P<name>[^>\s]+)>)?",
        r"</tool_call>",
        "xml-inline",
        _tags(r"<parameter=(?P<key>[^<>\n]+)>\n?(?P<value>(?:(?!<parameter=).)*?)\n?</parameter>"),
    ),
    ToolFormat(
        "glm",
        "GLM-4.5 and later",
        "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>",
        r"<tool_call>\s*(?P<name>[\w.-]+)?",
        r"</tool_call>",
        "xml-inline",
        _tags(
            r"<arg_key>(?P<key>[^<]*+)</arg_key>\s*+<arg_value>(?P<value>(?:(?!<arg_key>).)*?)</arg_value>"
        ),
    ),
    ToolFormat(
        "deepseek",
        "DeepSeek-V3, R1 and V3.1",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{…}\n```<｜tool▁call▁end｜>",
        r"<｜tool▁call▁begin｜>(?:(?:function<｜tool▁sep｜>)?(?P<name>[^\s<]+)(?:<｜tool▁sep｜>|\s*```json\s))?",
        r"(?:\n```)?\n?<｜tool▁call▁end｜>",
        leads=("<｜tool▁calls▁begin｜>",),
    ),
    ToolFormat(
        "harmony",
        "gpt-oss",
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>",
        r"to=functions\.(?P<name>[^\s<]++)[^<]*+(?:<\|channel\|>[^<]*+)?(?:<\|constrain\|>[^<]*+)?<\|message\|>",
        r"<\|(?:call|end|start|return)\|>",
        leads=("<|channel|>commentary", "<|channel|>analysis", "<|start|>assistant"),
    ),
    ToolFormat(
        "gemma",
        "Gemma 4",
        '<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>}<tool_call|>',
        r"<\|tool_call>\s*(?:call:(?P<name>[\w.-]+))?",
        r"<tool_call\|>",
        options={"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
        thoughts_end="<channel|>",
    ),
    ToolFormat(
        "mistral",
        "Mistral (tokenizers v11 and later)",
        "[TOOL_CALLS]NAME[ARGS]{…}",
        r"\[TOOL_CALLS\]\s*(?:(?P<name>[\w.-]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\])?",
        r"(?=\[TOOL_CALLS\])|</s>",
        thoughts_end="[/THINK]",
    ),
    HERMES,
    ToolFormat(
        "json",
        "Llama 3.1 to 3.3 (with `<|python_tag|>`), older Mistral, other templates that write JSON objects",
        '{"name": "…", "parameters": {…}}',
        r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"]*)"\s*,'
        r'\s*"(?:parameters|arguments)"\s*:',
        r"\}\s*\}",
        "objects",
        leads=("[", "[TOOL_CALLS]", "<|tool_call|>"),
    ),
)
"""Formats in the order of the search. JSON objects are last, because other formats contain them too.

Models may write anything, so every pattern takes time linear in the text's length.
"""


def find_format(render: Callable[[list[dict[str, Any]]], str | None]) -> ToolFormat | None:
    """The format in which a chat template writes a call; None if it writes none.

    `render` returns a conversation as text, or None if the template refuses it. Raises UnreadableFormat.
    """
    unread = ""
    for turn in calling_turns([FUNCTION], {"probe_argument": "probe value"}):
        text = render([QUESTION, turn]) or ""
        for known in FORMATS:
            if any(call["name"] == FUNCTION for call in re.finditer(known.opening, text)):
                return known
        unread = unread or (text if FUNCTION in text else "")
    if unread:
        start = unread.index(FUNCTION)
        written = unread[max(0, start - 40) : start + 80]
        names = "; ".join(f"{known.name} ({known.families})" for known in FORMATS)
        raise UnreadableFormat(
            f"the model's chat template writes tool calls in a format that cannot be read: {written!r}. "
            f"Readable formats: {names}"
        )
    return None


def calling_turns(names: Sequence[str], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a model's turn that calls the functions, in each form that a chat template may expect: without
    text or with empty text, with arguments as an object or as JSON.
    """
    forms = (given, json.dumps(given, ensure_ascii=False))
    for content, arguments in itertools.product(("", None), forms):
        calls = [
            {
                "id": call_id(place),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for place, name in enumerate(names)
        ]
        yield {"role": "assistant", "content": content, "tool_calls": calls}


def call_id(place: int) -> str:
    """Nine characters, as Mistral's templates demand."""
    return f"call{place:05d}"
