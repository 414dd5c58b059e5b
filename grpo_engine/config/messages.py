"""The messages and tools of a row's conversation, as chat templates get them."""

from collections.abc import Mapping, Sequence
from typing import Any

TEMPLATE_FAULTS = (
    *(TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError, RecursionError),
)
"""Python's exceptions that a chat template, besides Jinja's, may raise for a conversation that it does not
support."""


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined: templates of text models accept only strings."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    return {**message, "content": content}


def text_of(message: Mapping[str, Any]) -> str:
    return str(plain(message)["content"] or "")


def learned_text(prompt: str, whole: str, last: Mapping[str, Any]) -> str:
    """What supervised training learns after `prompt`: the turn `last` of the rendered conversation `whole`.

    Templates of reasoning models end the prompt with the beginning of the thoughts, and may write a whole
    conversation differently there: with other spaces (Nemotron), or without the thoughts (DeepSeek-R1).
    """
    different = (place for place, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1])
    shared = next(different, min(len(prompt), len(whole)))
    if not prompt[shared:].strip():
        return whole[shared:]
    text, begun = text_of(last), prompt[shared:].strip()
    return text.removeprefix(begun).lstrip() if text.startswith(begun) else text


def shown_tools(own: Sequence[dict[str, Any]], of_row: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that a prompt shows: the job's, then the row's tools that have other names."""
    names = {_function_name(tool) for tool in own}
    return [*own, *(tool for tool in of_row if _function_name(tool) not in names)]


def _function_name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else tool.get("name")
