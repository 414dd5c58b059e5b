"""Rows that come twice: within the training file, and held-out rows that training sees.

Boundary: warns, never refuses. Rows stream; 16 bytes per training row are kept.
"""

from __future__ import annotations

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
        num_rows = num_pairs = 0
        for row in rows:
            num_rows += 1
            earlier = self._seen(row, param)
            if earlier is not None:
                num_pairs += 1
                pairs += [(row.line, earlier)] if len(pairs) < SHOWN_ROWS else []
            yield row
        if num_pairs:
            self._tell(param, num_rows, num_pairs, pairs)

    def _seen(self, row: Row, param: str) -> int | None:
        """Line of the training row with the same conversation."""
        digest = _digest(row)
        if param != "training_file":
            return self._training.get(digest)
        first = self._training.setdefault(digest, row.line)
        return None if first == row.line else first

    def _tell(self, param: str, num_rows: int, num_pairs: int, pairs: list[tuple[int, int]]) -> None:
        shown = ", ".join(f"row {line} is training row {earlier} again" for line, earlier in pairs)
        more = f" and {num_pairs - len(pairs)} more" if num_pairs > len(pairs) else ""
        if param == "training_file":
            text = f"{num_pairs} of {num_rows} rows repeat the prompt of an earlier one: {shown}{more}."
            self.warn("duplicate_rows", f"{param}: {text} Repeated prompts weigh more.")
            return
        code = "validation_leak" if param == "validation_file" else "retention_leak"
        text = f"{num_pairs} of {num_rows} rows are training rows too: {shown}{more}."
        self.warn(code, f"{param}: {text} Improvement on them may be memorisation.")


def _digest(row: Row) -> bytes:
    """Of all that the model reads, and what it is to learn; not of what only graders see."""
    conversation = [row.messages if row.messages is not None else row.prompt, row.completion, row.tools]
    return hashlib.blake2b(json.dumps(conversation, sort_keys=True).encode(), digest_size=16).digest()
