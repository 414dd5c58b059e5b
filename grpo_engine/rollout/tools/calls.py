"""Tool calls in the text of a model's turn, read with transformers' response parser, one call at a time.

Nothing runs here, and nothing raises: a malformed call becomes a call with an error, and the others are still
read. JSON objects without tags (Llama) are read here, because the response parser would not find them.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from transformers.utils.chat_parsing import parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from grpo_engine.config.tool_formats import ToolFormat
from grpo_engine.contract.records import storable
from grpo_engine.contract.strict_json import parse_json
from grpo_engine.graders.samples import MAX_DEPTH, is_deep
from grpo_engine.rollout.tools.argument_types import with_types

PYTHON_TAG = "<|python_tag|>"
_OBJECT = re.compile(r'\{\s*"(?:name|type|parameters|arguments)"\s*:')
_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"')
_BARE_KEY = re.compile(r'<\|"\|>.*?<\|"\|>|(?<=[{,])(?P<key>[^"<>{}\[\],:]+)(?=:)', re.DOTALL)
"""A text of Gemma, whose colons are no ends of keys, or a key."""
_TURN_END = re.compile(r"<\|eo[tm]_id\|>")
_SHOWN_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    """Empty if the call cannot be read."""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the call cannot be run; the model gets it as the call's answer."""


class CallReader:
    """Reads the calls of one format. `tools`: function schemas, for types that the format leaves out."""

    def __init__(self, known: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> None:
        self.known = known
        self._tools = list(map(with_types, tools)) if known.content == "xml-inline" else None
        self._call = re.compile(f"(?:{known.opening})(?P<body>.*?)(?:{known.closing}|\\Z)", re.DOTALL)
        self._template = None if known.content == "objects" else load_response_template(_template(known))

    def read(self, text: str) -> list[ToolCall]:
        """The calls of one turn, in order; calls inside the model's thoughts are ignored.

        A last call may lack its end tag. A call that cannot be read has `error` set.
        """
        before, has_thoughts, after = text.partition(self.known.thoughts_end)
        answer = after if has_thoughts else before
        if self.known.content == "objects":
            tagged = PYTHON_TAG in answer
            return _after_python_tag(answer) if tagged else [call for _, call in _objects(answer)]
        return [self._read(match) for match in self._call.finditer(answer)]

    def split(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text before the first call, and the calls. Without a readable call, the whole text."""
        calls = [call for call in self.read(text) if not call.error]
        if not calls:
            return text, []
        thoughts, mark, answer = text.partition(self.known.thoughts_end)
        if not mark:
            thoughts, answer = "", thoughts
        spoken = answer[: self._start(answer)].rstrip()
        for lead in self.known.leads:
            spoken = spoken.removesuffix(lead).rstrip()
        return (thoughts + mark + spoken).strip(), calls

    def _start(self, answer: str) -> int:
        """Place of the first call in a text that has one."""
        if self.known.content != "objects":
            return next(self._call.finditer(answer)).start()
        if PYTHON_TAG in answer:
            return answer.index(PYTHON_TAG)
        return next(place for place, call in _objects(answer) if not call.error)

    def _read(self, match: re.Match[str]) -> ToolCall:
        if rest := self._unread(match["body"]):
            return self._malformed(f"{rest[:_SHOWN_CHARACTERS]!r} is neither an argument nor complete")
        try:
            text = _BARE_KEY.sub(_quoted, match[0]) if "string_delims" in self.known.options else match[0]
            found = parse_response(text, self._template, prefix="", tools=self._tools)
        except (ValueError, RecursionError) as error:
            return self._malformed(_not_json(error.__cause__ or error))
        except KeyError:
            return self._malformed("the call names no function")
        return checked(found["tool_calls"][0]["function"])

    def _unread(self, body: str) -> str:
        """The rest of a body with tagged arguments after all arguments are removed."""
        if self.known.content != "xml-inline":
            return ""
        rest = re.sub(self.known.options["tag_pattern"], "", body, flags=re.DOTALL)
        return rest.replace("</function>", "").strip()

    def _malformed(self, reason: str) -> ToolCall:
        return ToolCall("", error=f"{reason}; a call is {self.known.example}")


def _quoted(found: re.Match[str]) -> str:
    """A key in Gemma's quotes; transformers would quote it only if it has no other character than `\\w`."""
    return f'<|"|>{found["key"].strip()}<|"|>' if found["key"] else found[0]


def _template(known: ToolFormat) -> dict[str, Any]:
    """The format as a response template of transformers."""
    named = {"name": "{name}", "arguments": "{content}"}
    calls = {
        "open_pattern": known.opening,
        "close_pattern": known.closing,
        "repeats": True,
        "content": known.content,
        "content_args": dict(known.options),
        "transform": {"type": "function", "function": "{content}" if known.is_named_inside else named},
    }
    return {"start_anchor": "assistant", "fields": {"tool_calls": calls}}


def checked(call: Any) -> ToolCall:
    """A call from `{"name", "arguments" or "parameters"}`; arguments may be JSON in a string."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return ToolCall("", error='a call is {"name": "…", "arguments": {…}}')
    name, arguments = storable(call["name"]), call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # as OpenAI writes them
        with suppress(ValueError):
            arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(name, error="arguments must be a JSON object")
    if is_deep(arguments):
        return ToolCall(name, error=f"arguments have more than {MAX_DEPTH} levels")
    try:
        return ToolCall(name, parse_json(storable(json.dumps(arguments, ensure_ascii=False))))
    except (ValueError, TypeError, RecursionError) as error:
        return ToolCall("", error=_not_json(error))


def _not_json(error: BaseException) -> str:
    return f"the call is not JSON: {str(error)[:_SHOWN_CHARACTERS]}"


def _objects(text: str) -> Iterator[tuple[int, ToolCall]]:
    """The JSON objects in a text that are calls, with their places; other objects are ignored."""
    at = 0
    while start := _OBJECT.search(text, at):
        place = start.start()
        try:
            value, at = json.JSONDecoder().raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            at = max(start.end(), getattr(error, "pos", len(text)))
            following = _OBJECT.search(text, at)
            if _ARGUMENTS.search(text, place, following.start() if following else len(text)):
                yield place, ToolCall("", error=_not_json(error))
            continue
        if "parameters" in value or "arguments" in value:
            yield place, checked(value)


def _after_python_tag(text: str) -> list[ToolCall]:
    """Llama's calls after its tag: JSON, `NAME.call(key="value")`, or code for the tool `python`."""
    code = _TURN_END.split(text.partition(PYTHON_TAG)[2])[0].strip()
    if calls := [call for _, call in _objects(code)]:
        return calls
    with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        match ast.parse(code, mode="eval").body:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="call"), args=[], keywords=given):
                arguments = {each.arg: ast.literal_eval(each.value) for each in given}
                return [checked({"name": name, "arguments": arguments})]
    return [ToolCall("python", {"code": code})]
