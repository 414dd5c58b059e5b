"""The first rows of a dataset, and how many tokens its rows have.

Lines stream: memory holds the shown rows and the lengths.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from service.files.schemas import FilePreview, TokenLengths
from service.jobs.model.dataset import RowError, parse_line
from service.platform.errors import InvalidRequest
from service.platform.token_counting import ModelText, RenderError

MAX_SHOWN_BYTES = 2**20
"""Size of the rows that are shown; the first row is always shown, even if it is longer."""
COUNTED_ROWS = 2000
BATCH_BYTES = 2**21
"""Lines up to this size are counted together; a longer one is counted alone."""


def preview(lines: Iterable[bytes], *, limit: int, num_rows: int, text: ModelText | None) -> FilePreview:
    """Up to `limit` rows, and the lengths of up to COUNTED_ROWS rows spread evenly over the file.

    Raises InvalidRequest naming a line that is not a JSON object.
    """
    every = max(1, math.ceil(num_rows / COUNTED_ROWS)) if text else 0
    shown: list[dict[str, Any]] = []
    counted: list[dict[str, Any]] = []
    lengths: list[int] = []
    num_bytes = waiting_bytes = 0
    for index, number, line in _numbered(lines):
        is_shown = index == len(shown) < limit and (not shown or num_bytes + len(line) <= MAX_SHOWN_BYTES)
        is_counted = every > 0 and index % every == 0
        if not is_shown and not every:
            break
        if is_shown or is_counted:
            row = _parsed(line, number)
            shown += [row] if is_shown else []
            counted += [row] if is_counted else []
            waiting_bytes += len(line) if is_counted else 0
        num_bytes += len(line)
        if text and waiting_bytes >= BATCH_BYTES:
            lengths += _lengths(text, counted)
            counted, waiting_bytes = [], 0
    if text:
        lengths += _lengths(text, counted)
    columns = list(dict.fromkeys(name for row in shown for name in row))
    return FilePreview(rows=shown, num_rows=num_rows, columns=columns, tokens=_summary(lengths))


def count_rows(lines: Iterable[bytes]) -> int:
    """The number of lines that are not blank."""
    return sum(1 for _ in _numbered(lines))


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """(Index of the row, number of its line, line); blank lines are not rows."""
    index = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield index, number, line
            index += 1


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        return parse_line(line)
    except RowError as fault:
        message = f"file_id: line {number} {fault.reason}, so the file has no preview."
        raise InvalidRequest(message, param="file_id", code="invalid_jsonl") from fault


def _lengths(text: ModelText, rows: Iterable[dict[str, Any]]) -> list[int]:
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
