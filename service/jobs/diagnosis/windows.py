"""Windows over the steps of a run, and verdicts that do not change from step to step.

Boundary: pure statistics of (step, value) points; what they mean is decided by the rules.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, sqrt
from operator import itemgetter
from statistics import fmean

from service.jobs.diagnosis.findings import Compared, number

BLOCK_STEPS = 10
"""Rules are judged after every tenth step, so that one step cannot change a verdict."""
MIN_STEPS = 2 * BLOCK_STEPS
"""Fewest steps that are judged: two blocks must agree."""
RELEASE = 0.75
"""A finding about a limit is withdrawn below this share of the limit."""

Points = Sequence[tuple[int, float]]
"""(step, value) in order of steps; steps may be missing."""


@dataclass(frozen=True)
class Span:
    """The mean of a metric over some of its steps. As text: an evidence line."""

    name: str
    first: int
    last: int
    mean: float
    square_error: float
    """Squared standard error of the mean."""

    @property
    def place(self) -> str:
        return f"step {self.first}" if self.first == self.last else f"steps {self.first}–{self.last}"

    def __str__(self) -> str:
        return f"{self.place}: {self.name} {number(self.mean)}"

    @property
    def compared(self) -> Compared:
        return Compared(label=f"{self.name}, {self.place}", value=self.mean, step=self.last)

    def against(self, limit: float) -> list[Compared]:
        """The mean and a limit that it has reached."""
        return [self.compared, Compared(label="limit", value=limit)]


def span(name: str, points: Points, first: int, last: int) -> Span | None:
    """The mean over the steps from `first` to `last`; None if none of them has a value."""
    start = bisect_left(points, first, key=itemgetter(0))
    found = points[start : num_until(points, last)]
    if not found:
        return None
    values = [value for _, value in found]
    return Span(name, found[0][0], found[-1][0], fmean(values), _noise(values) / len(values))


def num_until(points: Points, end: int) -> int:
    """Number of points up to step `end`."""
    return bisect_right(points, end, key=itemgetter(0))


def _noise(values: Sequence[float]) -> float:
    """Variance of one step, computed from differences of successive steps so that a trend does not count.

    It is half of the differences' mean square (von Neumann 1941).
    """
    differences = [(after - before) ** 2 for before, after in pairwise(values)]
    return fmean(differences) / 2 if differences else 0.0


def error_between(one: Span, other: Span) -> float:
    """Standard error of the difference of two means."""
    return sqrt(one.square_error + other.square_error)


def means_so_far(points: Points) -> list[float]:
    """Mean of the first 1, 2, … values."""
    return [total / num for num, total in enumerate(accumulate(value for _, value in points), 1)]


def changes_so_far(points: Points) -> list[tuple[float, float]]:
    """For the first 1, 2, … points: the change along a fitted line, and its standard error.

    The error is infinite for fewer than three points. Each sum of squares is computed from the one before
    (Welford 1962), because a fit for each judgment would take a minute for 20,000 steps.
    """
    changes: list[tuple[float, float]] = []
    mean_step = mean = steps_steps = steps_values = values_values = 0.0
    for num, (step, value) in enumerate(points, 1):
        from_step, from_mean = step - mean_step, value - mean
        mean_step += from_step / num
        mean += from_mean / num
        steps_steps += from_step * (step - mean_step)
        steps_values += from_step * (value - mean)
        values_values += from_mean * (value - mean)
        if num < 3:
            changes.append((0.0, inf))
            continue
        slope, length = steps_values / steps_steps, step - points[0][0]
        rest = max(0.0, values_values - slope * steps_values)
        changes.append((slope * length, length * sqrt(rest / (num - 2) / steps_steps)))
    return changes


def settled(judge: Callable[[int], bool | None], ends: Sequence[int]) -> int | None:
    """The newest of `ends` that confirms a verdict of true; None if the verdict is false.

    `judge(end)` judges the run up to `end`: true, false, or None if undecided. Two consecutive judgments that
    agree make a verdict, which holds until two consecutive judgments agree on the opposite.
    """
    newer: bool | None = None
    for index in range(len(ends) - 1, -1, -1):
        found = judge(ends[index])
        if found is not None and found is newer:
            return ends[index + 1] if found else None
        newer = found
    return None


def above(name: str, points: Points, limit: float, ends: Sequence[int]) -> Span | None:
    """The last two blocks whose means are at least `limit`; None if the metric is not above it."""

    def judge(end: int) -> bool | None:
        block = span(name, points, end - BLOCK_STEPS + 1, end)
        if block is None:
            return None
        return block.mean >= limit or (False if block.mean < RELEASE * limit else None)

    end = settled(judge, ends)
    return None if end is None else span(name, points, end - 2 * BLOCK_STEPS + 1, end)
