"""The first rows of a dataset, and how many tokens its rows have.

Lines stream: memory holds the shown rows and the lengths.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from service.files.schemas import TokenLengths
from service.jobs.model.dataset import RowError, parse_line
from service.platform.errors import InvalidRequest
from service.platform.token_counting import ModelText, RenderError

MAX_SHOWN_BYTES = 2**20
"""Size of the rows that are shown; the first row is always shown, even if it is longer."""
COUNTED_ROWS = 2000
BATCH_BYTES = 2**21
"""Lines up to this size are counted together; a longer one is counted alone."""

Row = dict[str, Any]


def first_rows(lines: Iterable[bytes], limit: int) -> list[Row]:
    """Up to `limit` rows. Raises InvalidRequest naming a line that is not a JSON object."""
    shown: list[Row] = []
    num_bytes = 0
    for number, line in islice(_numbered(lines), limit):
        num_bytes += len(line)
        if shown and num_bytes > MAX_SHOWN_BYTES:
            break
        shown.append(_parsed(line, number))
    return shown


def token_lengths(lines: Iterable[bytes], num_rows: int, text: ModelText) -> TokenLengths | None:
    """The lengths of up to COUNTED_ROWS rows spread evenly over the file; None if the model reads none.

    Raises InvalidRequest naming a line that is not a JSON object.
    """
    every = max(1, math.ceil(num_rows / COUNTED_ROWS))
    lengths: list[int] = []
    waiting: list[Row] = []
    num_bytes = 0
    for number, line in islice(_numbered(lines), 0, None, every):
        waiting.append(_parsed(line, number))
        num_bytes += len(line)
        if num_bytes >= BATCH_BYTES:
            lengths += _lengths(text, waiting)
            waiting, num_bytes = [], 0
    return _summary([*lengths, *_lengths(text, waiting)])


def count_rows(lines: Iterable[bytes]) -> int:
    """The number of lines that are not blank."""
    return sum(1 for _ in _numbered(lines))


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The rows with the numbers of their lines; blank lines are not rows."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _parsed(line: bytes, number: int) -> Row:
    try:
        return parse_line(line)
    except RowError as fault:
        message = f"file_id: line {number} {fault.reason}, so the file has no preview."
        raise InvalidRequest(message, param="file_id", code="invalid_jsonl") from fault


def _lengths(text: ModelText, rows: Iterable[Row]) -> list[int]:
    """Tokens of the rows that the model can read: prompts, with the answer if the row has one."""
    rendered, plain = [], []
    for row in rows:
        messages, prompt = row.get("messages"), row.get("prompt")
        if isinstance(prompt, str):
            plain.append(prompt + str(row.get("completion") or ""))
        elif isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
            is_prompt = messages[-1].get("role") != "assistant"
            try:
                rendered.append(text.render(messages, row.get("tools"), for_completion=is_prompt))
            except RenderError:
                continue
    return [*text.lengths(rendered, rendered=True), *text.lengths(plain, rendered=False)]


def _summary(lengths: list[int]) -> TokenLengths | None:
    if not lengths:
        return None
    ordered = sorted(lengths)
    last = len(ordered) - 1
    return TokenLengths(
        rows=len(ordered),
        min=ordered[0],
        median=ordered[last // 2],
        p95=ordered[math.ceil(0.95 * len(ordered)) - 1],
        max=ordered[last],
    )
