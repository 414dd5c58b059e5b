"""A watched job's time so far and time left."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.progress import ProgressColumn, Task
from rich.text import Text

from service.cli.terminal.output import duration


class Pace:
    """The job's elapsed time, and its remaining time if every further step takes the mean time.

    They start from the API's numbers, so the steps that the stream repeats after attaching do not distort
    them, and they do not depend on this machine's clock.
    """

    def __init__(self, job: Mapping[str, Any], now: Callable[[], float] = time.monotonic) -> None:
        progress = job["progress"]
        self._now = now
        self._attached_at = now()
        self._step, self._total = progress["step"], progress["total_steps"]
        left, steps_left = progress.get("seconds_remaining"), self._total - self._step
        is_known = left is not None and steps_left > 0
        self._age = left / steps_left * self._step if is_known else 0.0
        self._uncounted = 0 if is_known else self._step
        """Steps whose time is unknown, because no worker holds the job."""

    def start(self) -> None:
        """The job runs now: time in the queue does not count."""
        if self._step == self._uncounted:
            self._attached_at = self._now()

    def reach(self, step: int, total: int | None) -> None:
        self._step, self._total = max(step, self._step), total or self._total

    @property
    def elapsed_seconds(self) -> float:
        return self._age + self._now() - self._attached_at

    @property
    def seconds_left(self) -> float | None:
        """The expected remaining time; None before the first step, or if the number of steps is unknown."""
        num_steps = self._step - self._uncounted
        if num_steps < 1 or not self._total:
            return None
        return self.elapsed_seconds / num_steps * (self._total - self._step)


class Times(ProgressColumn):
    """`4m 10s, 12m 40s left`."""

    max_refresh = 0.5

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: Task) -> Text:
        left = self._pace.seconds_left
        remaining = "" if left is None else f", {duration(left)} left"
        return Text(f"{duration(self._pace.elapsed_seconds)}{remaining}", no_wrap=True)
