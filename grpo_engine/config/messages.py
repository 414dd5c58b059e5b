"""The messages and tools of a row's conversation, as chat templates get them."""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError
from pydantic_core import from_json

from grpo_engine.config.tool_formats import THOUGHTS_END

TEMPLATE_ERRORS = (
    *(TemplateError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, RecursionError),
)
"""Exceptions that a chat template may raise for a conversation that it does not support."""

OPENING_CHARACTERS = 16
"""An end of a prompt with at least this many characters is recognised in the whole conversation."""


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined: templates of text models accept only strings."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    return {**message, "content": content}


def text_of(message: Mapping[str, Any]) -> str:
    return str(plain(message)["content"] or "")


def rendered(render: Callable[[list[dict[str, Any]]], str], messages: Sequence[Mapping[str, Any]]) -> str:
    """The text that `render`, a chat template, makes of the messages.

    The role developer becomes system, because few templates know it and the others leave its messages out.
    Tool calls have their arguments as objects: most templates would quote JSON text again (OpenAI's form).
    Empty fields are left out: some templates only check that they exist, or write null as a word. A template
    that refuses this gets JSON text and, as the content of a call without text, null (DeepSeek-V3, R1), or an
    empty text (Cohere, Phi-3). Raises the template's first refusal, one of TEMPLATE_ERRORS.
    """
    as_objects = [_with_arguments(_without_empty(plain(message)), read_arguments) for message in messages]
    for message in as_objects:
        message["role"] = "system" if message["role"] == "developer" else message["role"]
    forms = [as_objects]
    if any(message.get("tool_calls") for message in as_objects):
        forms.append([_with_arguments(_with_content(message, None), _written) for message in as_objects])
        forms.append([_with_content(message, "") for message in as_objects])
    refusals = []
    for form in forms:
        try:
            return render(form)
        except TEMPLATE_ERRORS as error:
            refusals.append(error)
    raise refusals[0]


def _without_empty(message: dict[str, Any]) -> dict[str, Any]:
    """The message without null, empty lists and, if it calls tools, empty texts."""
    empty: tuple[Any, ...] = (None, [], "") if message.get("tool_calls") else (None, [])
    return {name: value for name, value in message.items() if value not in empty}


def _with_content(message: dict[str, Any], content: str | None) -> dict[str, Any]:
    """The message with this content if it is a turn of the model without text."""
    return {"content": content, **message} if message["role"] == "assistant" else message


def read_arguments(arguments: Any) -> Any:
    """Arguments of a tool call as an object; anything that is not an object in JSON unchanged."""
    if arguments in (None, ""):
        return {}
    with suppress(ValueError, TypeError):
        value = from_json(arguments, allow_inf_nan=False)
        return value if isinstance(value, dict) else arguments
    return arguments


def _written(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def _with_arguments(message: dict[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    """The message with `form(arguments)` in its tool calls."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_formed(call, form) for call in calls]} if calls else message


def _formed(call: Mapping[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or "arguments" not in function:
        return dict(call)
    return {**call, "function": {**function, "arguments": form(function["arguments"])}}


def learned_text(prompt: str, whole: str, last: Mapping[str, Any]) -> str:
    """What supervised training learns after `prompt`: the turn `last` of the rendered conversation `whole`.

    Templates of reasoning models end the prompt with the beginning of the thoughts, and may write a whole
    conversation differently there: with other spaces (Nemotron), or without the thoughts (DeepSeek-R1). That
    of gpt-oss leaves out the thoughts of calling turns if an answer follows, but not in the answer's prompt.
    """
    different = (place for place, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1])
    shared = next(different, min(len(prompt), len(whole)))
    if (tag := prompt.rfind("<", 0, shared)) > prompt.rfind(">", 0, shared):
        shared = tag  # the tags differ after their first characters
    begun, rest, text = prompt[shared:].strip(), whole[shared:], text_of(last)
    if THOUGHTS_END not in begun and len(end := _longest_end(prompt[shared:], rest)) >= OPENING_CHARACTERS:
        return rest.rpartition(end)[2]
    if not begun or (THOUGHTS_END not in begun and rest.startswith(text)):
        return rest
    return text.removeprefix(begun).lstrip() if text.startswith(begun) else text


def _longest_end(text: str, within: str) -> str:
    """The longest end of `text` that is a part of `within`."""
    length = bisect_right(range(1, len(text) + 1), 0, key=lambda size: text[-size:] not in within)
    return text[len(text) - length :]


def shown_tools(own: Sequence[dict[str, Any]], of_row: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that a prompt shows: the job's, then the row's tools that have other names."""
    names = {_function_name(tool) for tool in own}
    return [*own, *(tool for tool in of_row if _function_name(tool) not in names)]


def _function_name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else tool.get("name")
