"""Files that were found faultless under a method, remembered for a while: many jobs ask the same of one file.

Boundary: memory of one process. The content of a file id never changes, so neither does the result; only
valid files are remembered, so every refusal comes from reading the rows.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.job import Method
from service.jobs.intake.estimate import RowTokens

MAX_REMEMBERED = 256
REMEMBERED_SECONDS = 600.0
"""Then the rows are read again: a grader's trial may end differently on a changed machine."""
UNSEEN_BY_ROWS = {"learning_rate", "learning_rate_multiplier", "beta", "group_size", "n_steps", "n_epochs"}
"""Hyperparameters that no check of a row looks at; whatever else a method says makes another question."""


@dataclass(frozen=True)
class Faultless:
    """The result of reading the rows."""

    num_rows: Mapping[str, int]
    """By the field that names the file."""
    row_tokens: Mapping[str, RowTokens]
    """By the same field; empty if they were not counted."""
    warnings: Sequence[dict[str, str]]
    subject: Any
    """The model's texts that rows were counted with: another one is another question."""
    at: float = field(default_factory=time.monotonic)


class CheckedFiles:
    """Question → `Faultless`, the least lately used ones forgotten. Shared by all threads."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Faultless] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, question: Hashable, subject: Any) -> Faultless | None:
        with self._lock:
            found = self._found.get(question)
            if found is None or found.subject is not subject:
                return None
            if time.monotonic() - found.at > REMEMBERED_SECONDS:
                del self._found[question]
                return None
            self._found.move_to_end(question)
            return found

    def remember(self, question: Hashable, found: Faultless) -> None:
        with self._lock:
            self._found[question] = found
            self._found.move_to_end(question)
            if len(self._found) > MAX_REMEMBERED:
                self._found.popitem(last=False)


def asked_of_rows(method: Method) -> str:
    """The method as far as a check of rows may look at it, as text."""
    unseen: dict[str, Any] = {method.type: {"hyperparameters": UNSEEN_BY_ROWS}}
    return str(method.model_dump_json(exclude=unseen))
