"""The messages and tools of a row's conversation, as chat templates get them."""

from collections.abc import Mapping, Sequence
from typing import Any


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined: templates of text models accept only strings."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    return {**message, "content": content}


def text_of(message: Mapping[str, Any]) -> str:
    return str(plain(message)["content"] or "")


def shown_tools(own: Sequence[dict[str, Any]], of_row: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that a prompt shows: the job's, then the row's tools that have other names."""
    names = {_function_name(tool) for tool in own}
    return [*own, *(tool for tool in of_row if _function_name(tool) not in names)]


def _function_name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else tool.get("name")
