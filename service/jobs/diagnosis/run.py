"""What is known of a run, and the few ways in which rules look at it.

Boundary: plain data and statistics; `facts.py` reads it from the database, rules draw the conclusions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, variance
from typing import Any

from service.jobs.diagnosis.findings import DiagnosisFinding, Severity, nested, number, value_at
from service.jobs.model.states import TERMINAL, JobState
from service.jobs.results.manifest import settings_in

RECENT_STEPS = 20
"""A step's mean over a few prompts varies; twenty of them say how a run is now."""
MIN_STEPS = 20
"""With fewer steps a trend is mostly the luck of the prompts."""
NUM_ERRORS = 2.0
"""A difference counts from this many standard errors on: about 95%."""


@dataclass(frozen=True)
class Span:
    """The mean of a metric over some of its steps."""

    first: int
    last: int
    mean: float
    square_error: float
    """Of the mean."""

    def text(self, name: str) -> str:
        """An evidence line."""
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first}–{self.last}"
        return f"{steps}: {name} {number(self.mean)}"


@dataclass(frozen=True)
class Trend:
    """A metric's first third of steps against its last."""

    name: str
    early: Span
    late: Span

    @property
    def change(self) -> float:
        return self.late.mean - self.early.mean

    @property
    def is_shown(self) -> bool:
        """Whether the change is more than the steps' own variation."""
        return abs(self.change) > NUM_ERRORS * sqrt(self.early.square_error + self.late.square_error)

    @property
    def rises(self) -> bool:
        return self.is_shown and self.change > 0

    @property
    def evidence(self) -> list[str]:
        return [self.early.text(self.name), self.late.text(self.name)]


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
    """Part of the reward → share of the reward's variation that goes with it (r²)."""

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
    """One job with what it has left behind."""

    job_id: str
    state: JobState
    method: Mapping[str, Any]
    """Expanded."""
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
    def is_over(self) -> bool:
        return self.state in TERMINAL

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(row["step"], row[name]) for row in self.metrics if name in row]

    def recent(self, name: str) -> Span | None:
        """Over the last steps; None if no step has the metric."""
        points = self.series(name)[-RECENT_STEPS:]
        return _span(points) if points else None

    def trend(self, name: str) -> Trend | None:
        """None with fewer than MIN_STEPS steps."""
        points = self.series(name)
        third = len(points) // 3
        if len(points) < MIN_STEPS:
            return None
        return Trend(name, _span(points[:third]), _span(points[-third:]))

    def finding(
        self, code: str, cause: str, evidence: Sequence[str], advice: str, *, severity: Severity = "warning"
    ) -> DiagnosisFinding:
        """One that names no field yet."""
        return DiagnosisFinding(
            code=code, severity=severity, cause=cause, evidence=list(evidence), advice=advice
        )

    def changing(self, found: DiagnosisFinding, path: str, value: Any) -> DiagnosisFinding:
        """The finding with the field to change: a path from the method's own settings on."""
        place = f"method.{self.kind}.{path}"
        current = value_at(self.method, place.removeprefix("method."))
        change = {"field": place, "current": current, "suggested": value, "patch": nested(place, value)}
        return found.model_copy(update=change)

    def setting(self, found: DiagnosisFinding, name: str, value: Any) -> DiagnosisFinding:
        """The finding with the hyperparameter to change."""
        return self.changing(found, f"hyperparameters.{name}", value)

    def at(self, found: DiagnosisFinding, field_name: str) -> DiagnosisFinding:
        """The finding with a field whose value a person must choose."""
        return found.model_copy(update={"field": field_name})


def _span(points: Sequence[tuple[int, float]]) -> Span:
    values = [value for _, value in points]
    square_error = variance(values) / len(values) if len(values) > 1 else 0.0
    return Span(points[0][0], points[-1][0], fmean(values), square_error)
