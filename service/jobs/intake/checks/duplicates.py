"""Warns of repeated rows: within the training file, and held-out rows that are training rows too.

Rows stream; a digest of each training row and the places of repetitions are kept.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from service.jobs.intake.checks.method import Warn
from service.jobs.model.dataset import Row

SHOWN_ROWS = 5


@dataclass
class DuplicateCheck:
    """The rows of one job's files, the training file first."""

    warn: Warn
    _training: dict[bytes, int] = field(default_factory=dict)
    """Digest of a training row's conversation → its line."""

    def watch(self, rows: Iterable[Row], param: str) -> Iterator[Row]:
        """The same rows; duplicates are reported after the last one."""
        pairs: list[tuple[int, int]] = []
        num_rows = 0
        for row in rows:
            num_rows += 1
            if (earlier := self._first_line(row, param)) is not None:
                pairs.append((row.line, earlier))
            yield row
        if pairs:
            self._warn(param, num_rows, pairs)

    def _first_line(self, row: Row, param: str) -> int | None:
        """Line of the training row with the same conversation."""
        digest = _digest(row)
        if param != "training_file":
            return self._training.get(digest)
        first = self._training.setdefault(digest, row.line)
        return None if first == row.line else first

    def _warn(self, param: str, num_rows: int, pairs: list[tuple[int, int]]) -> None:
        shown = ", ".join(f"row {line} repeats training row {first}" for line, first in pairs[:SHOWN_ROWS])
        more = f" and {len(pairs) - SHOWN_ROWS} more" if len(pairs) > SHOWN_ROWS else ""
        if param == "training_file":
            text = f"{len(pairs)} of {num_rows} rows repeat the prompt of an earlier one: {shown}{more}."
            self.warn("duplicate_rows", f"{param}: {text} Repeated prompts weigh more.")
            return
        code = "validation_leak" if param == "validation_file" else "retention_leak"
        text = f"{len(pairs)} of {num_rows} rows are training rows too: {shown}{more}."
        self.warn(code, f"{param}: {text} Improvement on them may be memorisation.")


def _digest(row: Row) -> bytes:
    """Digest of the conversation and its target, without the fields that only graders see."""
    conversation = [row.messages if row.messages is not None else row.prompt, row.completion, row.tools]
    return hashlib.blake2b(json.dumps(conversation, sort_keys=True).encode(), digest_size=16).digest()
