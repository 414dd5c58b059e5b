"""Files that were valid under a method, remembered for a while: many jobs use one file in the same way.

Boundary: memory of one process. The content of a file id never changes, so neither does the result; only
valid files are remembered, so every refusal comes from reading the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_engine.config.job import Method
from service.jobs.intake.estimate import RowTokens
from service.jobs.intake.recent_results import RecentResults
from service.platform.token_counting import ModelText

UNSEEN_BY_ROWS = {"learning_rate", "learning_rate_multiplier", "beta", "group_size", "n_steps", "n_epochs"}
"""Hyperparameters that no check of a row looks at; whatever else a method says makes another question."""


@dataclass(frozen=True)
class CheckedRows:
    """The result of reading the rows of a request's files."""

    num_rows: Mapping[str, int]
    """By the field that names the file."""
    row_tokens: Mapping[str, RowTokens]
    """By the same field; empty if they were not counted."""
    warnings: Sequence[dict[str, str]]
    text: ModelText | None
    """What counted the tokens; the key has its id, which is unique while this holds it."""


class CheckedFiles(RecentResults[CheckedRows]):
    """Results of reading valid files. After ten minutes a grader's trial may end differently."""

    def __init__(self, seconds: float = 600.0, max_entries: int = 256) -> None:
        super().__init__(seconds, max_entries)


def asked_of_rows(method: Method) -> str:
    """The method as far as a check of rows may look at it, as text."""
    unseen: dict[str, Any] = {method.type: {"hyperparameters": UNSEEN_BY_ROWS}}
    return str(method.model_dump_json(exclude=unseen))
