"""The special tokens that end the model's turn, as its chat template writes them.

A copy of a model may lack generation_config.json, which names them, and the tokenizer names only one.
Boundary: text only.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

from grpo_engine.config.tool_formats import FUNCTION, QUESTION, call_id, calling_turns

Render = Callable[[list[dict[str, Any]]], str | None]
"""A conversation as text, or None if the template refuses it."""
SPOKEN, NEXT = "spokenqzxxzq", "nextqzxxzq"


def turn_ends(render: Render, special: Collection[str], stops: Collection[str]) -> set[str]:
    """The special tokens that end an answer and a tool call, except the already known `stops`.

    The end is the first special token after the turn's text or, if the conversation may end without one,
    before the next turn. A token does not count as an end if a known stop directly follows it, or if it also
    separates two calls of one turn.
    """
    if not special:
        return set()
    answer = {"role": "assistant", "content": SPOKEN}
    found = _end(render, answer, {"role": "user", "content": NEXT}, special, stops)
    result = {"role": "tool", "tool_call_id": call_id(0), "name": FUNCTION, "content": NEXT}
    for call in calling_turns([FUNCTION], {"text": SPOKEN}):
        if SPOKEN in (render([QUESTION, call]) or ""):
            between = _separators(render, special)
            found |= _end(render, call, result, special, {*stops, *found}, between)
            break
    return found


def _end(
    render: Render,
    turn: dict[str, Any],
    following: dict[str, Any],
    special: Collection[str],
    stops: Collection[str],
    inside: Collection[str] = (),
) -> set[str]:
    """The token that ends `turn`; empty if there is none or if it is a known stop. Skips the tokens
    `inside`."""
    runs = re.compile(f"(?:{_pattern(special)})+")
    for conversation in ([QUESTION, turn], [QUESTION, turn, following]):
        tail = (render(conversation) or "").rpartition(SPOKEN)[2].partition(NEXT)[0]
        for run in runs.findall(tail):
            tokens = [token for token in _tokens(run, special) if token not in inside]
            if tokens:
                return set() if any(token in stops for token in tokens) else {tokens[0]}
    return set()


def _separators(render: Render, special: Collection[str]) -> set[str]:
    """The special tokens between two calls of one turn."""
    for turn in calling_turns([FUNCTION, NEXT], {"text": SPOKEN}):
        _, _, tail = (render([QUESTION, turn]) or "").partition(SPOKEN)
        if NEXT in tail:
            return set(_tokens(tail.partition(NEXT)[0], special))
    return set()


def _tokens(text: str, special: Collection[str]) -> list[str]:
    """The special tokens in a text, in order."""
    return re.findall(_pattern(special), text)


def _pattern(special: Collection[str]) -> str:
    return "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
