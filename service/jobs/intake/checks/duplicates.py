"""Warns of repeated prompts: within the training file, and held-out rows whose prompt is trained on.

Rows stream; digests of the training rows and the places of the first repetitions are kept.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from service.jobs.intake.report import Report
from service.jobs.model.dataset import Row

SHOWN_ROWS = 5


@dataclass
class _Repetitions:
    """How many rows of one file repeat earlier rows of the training file."""

    num_rows: int = 0
    num_prompts: int = 0
    """Rows with the prompt of an earlier row."""
    num_answers: int = 0
    """The ones among them that also have the same answer."""
    first: list[tuple[int, int]] = field(default_factory=list)
    """The first repetitions: line, and line of the training row with the same prompt."""


@dataclass
class DuplicateCheck:
    """Finds repeated prompts in one job's files; the training file must be read first."""

    report: Report
    _prompts: dict[bytes, int] = field(default_factory=dict)
    """Digest of a training row's prompt → its line."""
    _answered: set[bytes] = field(default_factory=set)
    """Digests of training rows' prompts with their answers, if the rows have any."""

    def watch(self, rows: Iterable[Row], param: str, *, is_held_out_part: bool = False) -> Iterator[Row]:
        """Yields the rows unchanged; repetitions are reported after the last one.

        `is_held_out_part`: the rows are those that a split of the training file holds out.
        """
        found = _Repetitions()
        for row in rows:
            self._compare(row, param == "training_file", found)
            yield row
        if found.num_prompts:
            self._warn(param, found, is_held_out_part)

    def _compare(self, row: Row, is_training: bool, found: _Repetitions) -> None:
        prompt, answer = _parts(row)
        digest = _digest(prompt)
        earlier = self._prompts.get(digest)
        found.num_rows += 1
        if earlier is not None:
            found.num_prompts += 1
            found.first += [(row.line, earlier)] if len(found.first) < SHOWN_ROWS else []
        elif is_training:
            self._prompts[digest] = row.line
        if answer is None:
            return
        answered = _digest([prompt, answer])
        found.num_answers += answered in self._answered
        if is_training:
            self._answered.add(answered)

    def _warn(self, param: str, found: _Repetitions, is_held_out_part: bool) -> None:
        # a split keeps equal prompts on one side, so these rows repeat each other
        side, kind = ("held-out", "held-out rows") if is_held_out_part else ("training", "rows")
        shown = ", ".join(f"row {line} repeats {side} row {first}" for line, first in found.first)
        left = found.num_prompts - len(found.first)
        shown += f" and {left:,} more" if left else ""
        count = f"{found.num_prompts:,} of {found.num_rows:,} {kind}"
        answers = f" ({found.num_answers:,} with the same answer)" if self._answered else ""
        if param == "training_file":
            text = f"{count} repeat the prompt of an earlier one{answers}: {shown}."
            self.report.warn("duplicate_rows", f"{param}: {text} Repeated prompts weigh more.")
            return
        code = "validation_leak" if param == "validation_file" else "retention_leak"
        text = f"{count} have the prompt of a training row{answers}: {shown}."
        self.report.warn(code, f"{param}: {text} Improvement on them may be memorisation.")


def _parts(row: Row) -> tuple[list[Any], Any]:
    """The prompt without the fields that only graders see, and the answer that a supervised job learns."""
    if row.messages is None:
        return [row.prompt, row.tools], row.completion
    *turns, last = row.messages
    if last["role"] == "assistant":
        return [turns, row.tools], last
    return [row.messages, row.tools], None


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
