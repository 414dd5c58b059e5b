"""Splits a completion into reasoning steps.

Steps cover the whole text: a separator belongs to the step before it, and text before the first step belongs
to that step. All patterns run in linear time (RE2).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from grpo_engine.graders.pattern import MAX_TEXT_CHARACTERS, compiled

_SEPARATORS = {"lines": r"[ \t\r]*\n(?:[ \t\r]*\n)*", "paragraphs": r"[ \t\r]*\n(?:[ \t\r]*\n)+"}
_HEADING = r"(?im)^[ \t#*_>]*step[ \t]+[0-9]+[ \t]*[*_]*[:.)\-]"
"""`Step 1:`, also as a heading or in bold, as in `### Step 1:` and `**Step 1.**`."""

_CONTINUATION = bytes(range(0x80, 0xC0))


class Step(NamedTuple):
    """One step of a text."""

    text: str
    """The step, stripped of its separator and surrounding white space."""
    end: int
    """Characters of the whole text up to and including this step and its separator."""


def check_splitter(splitter: str) -> str:
    """The splitter, for pydantic. Raises ValueError if it is neither a name nor a pattern."""
    if splitter not in _SEPARATORS and splitter != "steps":
        if not splitter:
            raise ValueError("give lines, paragraphs, steps or a pattern")
        compiled(splitter)
    return splitter


def split(text: str, splitter: str, max_steps: int) -> list[Step]:
    """Steps in order. Raises ValueError if there are none or more than `max_steps`."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"longer than {MAX_TEXT_CHARACTERS} characters: not split into steps")
    steps: list[Step] = []
    for start, stop, end in _spans(text, splitter):
        content = text[start:stop].strip()
        if content:
            steps.append(Step(content, end))
        elif steps:
            steps[-1] = steps[-1]._replace(end=end)
        if len(steps) > max_steps:
            raise ValueError(f"the completion has more than {max_steps} steps")
    if not steps:
        raise ValueError("the completion has no steps")
    return steps


def _spans(text: str, splitter: str) -> Iterator[tuple[int, int, int]]:
    """Start and stop of each step's content, and the end of its separator."""
    if splitter == "steps":
        starts = [start for start, _ in _matches(_HEADING, text)]
        yield from ((start, following, following) for start, following in pairwise([*starts, len(text)]))
        return
    start = 0
    for stop, end in _matches(_SEPARATORS.get(splitter, splitter), text):
        yield start, stop, end
        start = end
    yield start, len(text), len(text)


def _matches(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    """Start and end, in characters, of the pattern's matches that are not empty."""
    data = text.encode("utf-8", "replace")
    position = num_characters = 0
    for match in compiled(pattern).finditer(data):
        if match.end() > match.start():
            start = num_characters + _count(data[position : match.start()])
            num_characters = start + _count(data[match.start() : match.end()])
            position = match.end()
            yield start, num_characters


def _count(data: bytes) -> int:
    """Characters whose first byte is in this piece of UTF-8."""
    return len(data.translate(None, _CONTINUATION))
