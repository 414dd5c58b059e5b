"""The facts about a run.

Boundary: plain data; `facts.py` reads it from the database, rules draw the conclusions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from service.jobs.diagnosis.findings import Change
from service.jobs.diagnosis.windows import (
    BLOCK_STEPS,
    MIN_STEPS,
    Points,
    Span,
    above,
    changes_so_far,
    means_so_far,
    span,
)
from service.jobs.model.states import TERMINAL, JobState
from service.jobs.results.manifest import settings_in


@dataclass(frozen=True)
class GuardWarning:
    """One warning of a guard, from the job's history."""

    code: str
    message: str
    step: int


@dataclass(frozen=True)
class Groups:
    """The newest stored groups of training, counted."""

    num: int = 0
    num_wrong: int = 0
    """All completions earned the same, 0 or less."""
    num_right: int = 0
    """All completions earned the same, a full reward."""
    num_between: int = 0
    """All completions earned the same, something between."""
    first_step: int = 0
    last_step: int = 0
    errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Code of a grader's error → its count, and one of its messages with the step."""
    failed_sessions: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Environment → the number of its failed sessions, and the newest reason with its step."""
    failed_calls: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Tool → the number of its failed calls, and the newest answer with its step."""

    @property
    def num_flat(self) -> int:
        return self.num_wrong + self.num_right + self.num_between

    def text(self) -> str:
        return (
            f"steps {self.first_step}–{self.last_step}: of {self.num} stored groups {self.num_flat} had no "
            f"signal ({self.num_wrong} all wrong, {self.num_right} all right, {self.num_between} with equal "
            "partial rewards)"
        )


@dataclass(frozen=True)
class Run:
    """One job and everything recorded about it."""

    job_id: str
    state: JobState
    method: Mapping[str, Any]
    """The method, expanded."""
    step: int
    total_steps: int
    num_rows: int | None = None
    """Rows of the training file, if they were counted."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """`{"step": …, name: value}` in order."""
    groups: Groups = field(default_factory=Groups)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None
    guards: Sequence[GuardWarning] = ()
    """The guards' warnings, in order of steps."""
    frequent_answer: str = ""
    """The most frequent answer to the newest evaluation's stored rows, quoted; empty without any."""
    unrewarded: str = ""
    """An answer of the newest group in which none got a reward: `"39" for "35+4="`; empty without any."""

    @property
    def kind(self) -> str:
        return str(self.method["type"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """The hyperparameters."""
        found: Mapping[str, Any] = settings_in(self.method)["hyperparameters"]
        return found

    @property
    def has_turns(self) -> bool:
        """Whether a completion may have several turns, so that `max_turns` may end it."""
        given = settings_in(self.method)
        return bool(given.get("tools") or given.get("environments"))

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    @cached_property
    def _columns(self) -> dict[str, list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = {}
        for row in self.metrics:
            for name, value in row.items():
                found.setdefault(name, []).append((row["step"], value))
        return found

    def series(self, name: str) -> Points:
        return self._columns.get(name, ())

    @cached_property
    def last_step(self) -> int:
        """The newest step with metrics; 0 without any."""
        return max((row["step"] for row in self.metrics if "reward" in row or "loss" in row), default=0)

    @cached_property
    def ends(self) -> range:
        """Steps after which the run is judged."""
        return range(BLOCK_STEPS, self.last_step + 1, BLOCK_STEPS)

    @cached_property
    def best_blocks(self) -> list[Span | None]:
        """The block with the highest reward among the first 1, 2, … blocks."""
        return list(
            accumulate((self.span("reward", end - BLOCK_STEPS + 1, end) for end in self.ends), _better)
        )

    @cached_property
    def reward_changes(self) -> list[tuple[float, float]]:
        return changes_so_far(self.series("reward"))

    @cached_property
    def mean_spreads(self) -> list[float]:
        """Mean standard deviation of the rewards of the first 1, 2, … steps."""
        return means_so_far(self.series("reward_std"))

    def span(self, name: str, first: int, last: int) -> Span | None:
        return span(name, self.series(name), first, last)

    def above(self, name: str, limit: float) -> Span | None:
        """The last two blocks that reached the limit; None if the metric is not above it."""
        return above(name, self.series(name), limit, self.ends)

    def failing(self, name: str, limit: float) -> Span | None:
        """As `above`; of a run that ended before it could be judged, all steps."""
        if not self.is_over or self.last_step >= MIN_STEPS:
            return self.above(name, limit)
        whole = self.span(name, 1, MIN_STEPS)
        return whole if whole and whole.mean >= limit else None

    def change(self, path: str, value: Any) -> Change:
        """A change of the method's own settings: `path` inside them, and the suggested value."""
        names = ["method", self.kind, *path.split(".")]
        current: Any = {"method": self.method}
        for name in names:
            current = current.get(name) if isinstance(current, Mapping) else None
        patch = value
        for name in reversed(names):
            patch = {name: patch}
        return {"field": ".".join(names), "current": current, "suggested": value, "patch": patch}

    def setting(self, name: str, value: Any) -> Change:
        """A change of a hyperparameter."""
        return self.change(f"hyperparameters.{name}", value)


def _better(one: Span | None, other: Span | None) -> Span | None:
    return other if other and (one is None or other.mean > one.mean) else one
