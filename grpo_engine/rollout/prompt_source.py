"""Chooses the prompts of a step: by (seed, step) alone, skipping prompts without signal, or by level."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.base import named_generator


class PromptSource:
    """Every epoch is a new permutation of the rows; nothing is kept between steps."""

    def __init__(self, prompts: Sequence[Prompt], rows_per_step: int, seed: int) -> None:
        self.prompts = prompts
        self.rows_per_step = rows_per_step
        self.seed = seed
        self._epoch: tuple[int, np.ndarray] | None = None

    def batch(self, step: int) -> list[Prompt]:
        """Prompts of step 1, 2, …"""
        first = (step - 1) * self.rows_per_step
        return [self._at(position) for position in range(first, first + self.rows_per_step)]

    def fresh(self, step: int, attempt: int, count: int, used: Collection[int]) -> list[Prompt]:
        """At most `count` prompts to replace groups without signal; none of the rows in `used`."""
        if count <= 0:
            return []
        places = named_generator(f"{self.seed}/{step}/{attempt}").permutation(len(self.prompts))
        order = [self.prompts[int(place)] for place in places]
        return [prompt for prompt in order if self._is_available(prompt) and prompt.row not in used][:count]

    def observe(self, outcomes: Mapping[int, PromptOutcome]) -> None:
        """Record the step's outcomes by row; this order ignores them."""

    @property
    def state(self) -> dict[str, Any]:
        """JSON for `load`."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from another source's `state`."""

    def metrics(self) -> dict[str, float]:
        return {}

    def _is_available(self, prompt: Prompt) -> bool:
        return True

    def _at(self, position: int) -> Prompt:
        epoch, offset = divmod(position, len(self.prompts))
        return self.prompts[int(self._order(epoch)[offset])]

    def _order(self, epoch: int) -> np.ndarray:
        """The epoch's permutation of the rows; the newest one is cached."""
        if self._epoch is None or self._epoch[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._epoch = epoch, generator.permutation(len(self.prompts))
        return self._epoch[1]


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    has_signal: bool
    pass_rate: float
    """Share of the prompt's scored completions with full reward."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    visits: int = 0
    pass_rate: float = 0.0
    """Pass rate at the newest visit."""
    visits_without_signal: int = 0
    """Number of consecutive visits without signal."""
    skipped_until: int = 0
    """Epoch in which the prompt is used again."""


MAX_REST_EPOCHS = 8
"""Maximum number of epochs to skip a prompt; then it is used again, because the policy has changed."""


class CurriculumSource(PromptSource):
    """Skips prompts whose newest visits had no signal (solved or hopeless) for 1, 2, 4, 8 epochs."""

    def __init__(self, prompts: Sequence[Prompt], rows_per_step: int, seed: int) -> None:
        super().__init__(prompts, rows_per_step, seed)
        self.cursor = 0
        self.difficulty: dict[int, Difficulty] = {}

    def batch(self, step: int) -> list[Prompt]:
        """The next prompts that are not skipped; if too few remain, skipped ones are used too."""
        return [self._at(position) for position in self._positions()]

    def observe(self, outcomes: Mapping[int, PromptOutcome]) -> None:
        """Advance past the step's rows and record their outcomes."""
        epoch, positions = self._epoch_of(self.cursor), self._positions()
        came = {self._at(position).row: self._epoch_of(position) for position in positions}
        self.cursor = positions[-1] + 1
        for row, outcome in outcomes.items():
            known = self.difficulty.get(row, Difficulty())
            without_signal, skipped_until = 0, 0
            if not outcome.has_signal:
                without_signal = known.visits_without_signal + 1
                rest = min(MAX_REST_EPOCHS, 2 ** (without_signal - 1))
                skipped_until = came.get(row, epoch) + 1 + rest
            self.difficulty[row] = Difficulty(
                known.visits + 1, outcome.pass_rate, without_signal, skipped_until
            )

    @property
    def state(self) -> dict[str, Any]:
        rows = {str(row): [*astuple(known)] for row, known in sorted(self.difficulty.items())}
        return {"cursor": self.cursor, "rows": rows}

    def load(self, state: Mapping[str, Any]) -> None:
        self.cursor = int(state.get("cursor", 0))
        self.difficulty = {int(row): Difficulty(*values) for row, values in state.get("rows", {}).items()}

    def metrics(self) -> dict[str, float]:
        """Number of skipped prompts, by reason."""
        epoch = self._epoch_of(self.cursor)
        resting = [known for known in self.difficulty.values() if known.skipped_until > epoch]
        return {
            "curriculum/resting": float(len(resting)),
            "curriculum/solved": float(sum(known.pass_rate >= 1 for known in resting)),
            "curriculum/hopeless": float(sum(known.pass_rate <= 0 for known in resting)),
        }

    def _is_available(self, prompt: Prompt) -> bool:
        return self._is_due(prompt.row, self._epoch_of(self.cursor))

    def _epoch_of(self, position: int) -> int:
        return position // len(self.prompts)

    def _is_due(self, row: int, epoch: int) -> bool:
        return self.difficulty.get(row, Difficulty()).skipped_until <= epoch

    def _positions(self) -> list[int]:
        """Positions of the next step's rows; searches at most one epoch."""
        due: list[int] = []
        skipped: list[int] = []
        for position in range(self.cursor, self.cursor + len(self.prompts)):
            row = self._at(position).row
            (due if self._is_due(row, self._epoch_of(position)) else skipped).append(position)
            if len(due) == self.rows_per_step:
                return due
        chosen = due + skipped[: self.rows_per_step - len(due)]
        further = self.cursor + len(self.prompts)
        return sorted(chosen) + list(range(further, further + self.rows_per_step - len(chosen)))


LEVEL_STEPS, LEVEL_PASS_RATE = 2, 0.75


class LevelSource(PromptSource):
    """Rows of the lowest `level`, then those of higher levels too, each once the level below is solved.

    A level is solved if its newest outcomes, `LEVEL_STEPS` steps' worth, have a mean pass rate of at least
    `LEVEL_PASS_RATE`. A row without the field `level` has level 0.
    """

    def __init__(self, prompts: Sequence[Prompt], rows_per_step: int, seed: int) -> None:
        super().__init__(prompts, rows_per_step, seed)
        self.level_of = {prompt.row: int(prompt.item.get("level") or 0) for prompt in prompts}
        self.level, self.cursor = min(self.level_of.values()), 0
        self.pass_rates: list[float] = []
        """Pass rates of the newest outcomes of `level`, which is the highest open level."""

    def batch(self, step: int) -> list[Prompt]:
        """The next prompts of the open levels."""
        return [self._at(position) for position in self._positions()]

    def observe(self, outcomes: Mapping[int, PromptOutcome]) -> None:
        """Advance past the step's rows, and open the next level if this one is solved."""
        self.cursor = self._positions()[-1] + 1
        rates = [outcome.pass_rate for row, outcome in outcomes.items() if self.level_of[row] == self.level]
        needed = LEVEL_STEPS * self.rows_per_step
        self.pass_rates = [*self.pass_rates, *rates][-needed:]
        higher = [level for level in self.level_of.values() if level > self.level]
        if higher and len(self.pass_rates) == needed and sum(self.pass_rates) >= LEVEL_PASS_RATE * needed:
            self.level, self.pass_rates = min(higher), []

    @property
    def state(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "level": self.level, "pass_rates": self.pass_rates}

    def load(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def metrics(self) -> dict[str, float]:
        return {"curriculum/level": float(self.level)}

    def _is_available(self, prompt: Prompt) -> bool:
        return self.level_of[prompt.row] <= self.level

    def _positions(self) -> list[int]:
        """Positions of the next step's rows."""
        is_open = (position for position in count(self.cursor) if self._is_available(self._at(position)))
        return list(islice(is_open, self.rows_per_step))


ORDERS: dict[str, type[PromptSource]] = {
    "none": PromptSource,
    "rest": CurriculumSource,
    "levels": LevelSource,
}
"""Source of each value of the hyperparameter `curriculum`."""
