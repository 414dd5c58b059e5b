"""The times that `grpo watch` shows."""

import io
from typing import Any

import pytest
from rich.console import Console

from service.cli.commands import watch
from service.cli.terminal.pace import Pace


class Clock:
    """A clock that the test sets."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def running(step: int, seconds_remaining: float | None) -> dict[str, Any]:
    """A job of 100 steps."""
    progress = {"step": step, "total_steps": 100, "seconds_remaining": seconds_remaining}
    return {"phase": "training", "status": "running", "progress": progress}


def test_the_remaining_time_after_attaching_again_is_the_api_s_whatever_the_stream_repeats() -> None:
    clock = Clock()
    pace = Pace(running(60, 80.0), clock)
    for step in range(1, 61):
        pace.reach(step, 100)
    assert (pace.elapsed_seconds, pace.seconds_left) == pytest.approx((120.0, 80.0))
    clock.seconds += 40
    pace.reach(80, 100)
    assert (pace.elapsed_seconds, pace.seconds_left) == pytest.approx((160.0, 40.0))


def test_the_remaining_time_is_unknown_before_the_first_step_and_time_in_the_queue_does_not_count() -> None:
    clock = Clock()
    pace = Pace(running(0, None), clock)
    clock.seconds += 500
    assert pace.seconds_left is None
    pace.start()
    clock.seconds += 4
    pace.reach(2, 100)
    assert (pace.elapsed_seconds, pace.seconds_left) == pytest.approx((4.0, 196.0))


def test_a_requeued_job_is_timed_from_the_steps_that_were_watched() -> None:
    clock = Clock()
    pace = Pace(running(40, None), clock)
    pace.start()
    clock.seconds += 10
    assert pace.seconds_left is None
    pace.reach(45, 100)
    assert pace.seconds_left == pytest.approx(110.0)


def test_a_live_bar_shows_time_so_far_and_time_left() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    watch.Bar(running(60, 80.0), screen).close()
    assert isinstance(screen.file, io.StringIO)
    assert "2m 00s, 1m 20s left" in screen.file.getvalue()
