"""Who speaks: what the rest needs of a model, whether it runs here or behind an endpoint.

Boundary: rows in, completions out, in order. What the words mean is others' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_engine.objective.types import Completion
from grpo_engine.training_free.prompts import Row


@dataclass(frozen=True, slots=True)
class Reply(Completion):
    """A completion that is known as text: no token ids, and perhaps no answer at all."""

    num_tokens: int = 0
    """Completion tokens as the server counts them."""
    num_prompt_tokens: int = 0
    failure: str | None = None
    """Why there is no answer; then the text is empty and nobody grades it."""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How to ask."""

    max_tokens: int
    temperature: float
    """0 is greedy."""
    step: int = 0
    round: int = 0
    """Which of a step's rounds of questions: another one draws other tokens."""
    version: int = 0
    """Of the library; completions carry it as their policy's."""


OnRow = Callable[[int, tuple[Completion, ...]], None]
"""Called with a row's position as soon as its last answer is there."""


class ModelClient(Protocol):
    """A model that answers."""

    label: str

    def answer(
        self, rows: Sequence[Row], count: int, settings: AnswerSettings, on_row: OnRow | None = None
    ) -> list[tuple[Completion, ...]]:
        """`count` answers to each row, in the order of the rows. Raises EngineError where it cannot."""
        ...

    def fits(self, row: Row, max_tokens: int) -> bool:
        """Whether the row leaves room for an answer."""
        ...
