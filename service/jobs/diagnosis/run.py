"""The facts about a run, and the statistics that rules use.

Boundary: plain data; `facts.py` reads it from the database, rules draw the conclusions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, variance
from typing import Any

from service.jobs.diagnosis.findings import Change, number
from service.jobs.model.states import TERMINAL, JobState
from service.jobs.results.manifest import settings_in

RECENT_STEPS = 20
"""A step's mean over a few prompts varies; twenty of them show the current state of a run."""
MIN_STEPS = 20
"""Fewest steps that show a trend; in fewer, it is mostly the luck of the prompts."""
NUM_ERRORS = 2.0
"""A difference counts from this many standard errors on: about 95%."""


@dataclass(frozen=True)
class Span:
    """The mean of a metric over some of its steps. As text: an evidence line."""

    name: str
    first: int
    last: int
    mean: float
    square_error: float
    """Squared standard error of the mean."""

    def __str__(self) -> str:
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first}–{self.last}"
        return f"{steps}: {self.name} {number(self.mean)}"


@dataclass(frozen=True)
class Trend:
    """A metric's first third of steps against its last."""

    early: Span
    late: Span

    @property
    def is_shown(self) -> bool:
        """Whether the change is more than the steps' own variation."""
        error = sqrt(self.early.square_error + self.late.square_error)
        return abs(self.late.mean - self.early.mean) > NUM_ERRORS * error

    @property
    def rises(self) -> bool:
        return self.is_shown and self.late.mean > self.early.mean

    @property
    def evidence(self) -> list[str]:
        return [str(self.early), str(self.late)]


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
    """Code of a grader's error → how often, and one of its messages with its step."""
    explained: Mapping[str, float] = field(default_factory=dict)
    """Part of the reward → share of the reward's variation that it explains (r²)."""

    @property
    def num_flat(self) -> int:
        return self.num_wrong + self.num_right + self.num_between

    def text(self) -> str:
        return (
            f"steps {self.first_step}–{self.last_step}: of {self.num} stored groups {self.num_flat} had no "
            f"signal ({self.num_wrong} all wrong, {self.num_right} all right, {self.num_between} between)"
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
    metrics: Sequence[Mapping[str, Any]] = ()
    """`{"step": …, name: value}` in order."""
    groups: Groups = field(default_factory=Groups)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        return str(self.method["type"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """The hyperparameters."""
        found: Mapping[str, Any] = settings_in(self.method)["hyperparameters"]
        return found

    @property
    def failure_code(self) -> str | None:
        return str(self.failure["code"]) if self.failure else None

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(row["step"], row[name]) for row in self.metrics if name in row]

    def recent(self, name: str) -> Span | None:
        """Over the last steps; None if no step has the metric."""
        points = self.series(name)[-RECENT_STEPS:]
        return _span(name, points) if points else None

    def trend(self, name: str) -> Trend | None:
        """None with fewer than MIN_STEPS steps."""
        points = self.series(name)
        third = len(points) // 3
        if len(points) < MIN_STEPS:
            return None
        return Trend(_span(name, points[:third]), _span(name, points[-third:]))

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


def _span(name: str, points: Sequence[tuple[int, float]]) -> Span:
    values = [value for _, value in points]
    square_error = variance(values) / len(values) if len(values) > 1 else 0.0
    return Span(name, points[0][0], points[-1][0], fmean(values), square_error)
