"""Grading that cannot hang: each rule runs where it may, and every completion gets a score in bounded time.

    with open_grading(grader) as grading:
        scores = [future.result() for future in [grading.submit(sample, item) for sample in samples]]

Boundary: completions in, scores out, in any order and of any number; nothing of groups or training here.
A completion whose rule hangs, floods or dies is unscorable; the others are not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from grpo_engine.contract.records import Sample, Score
from grpo_engine.graders import Grader
from grpo_engine.graders.base import Execution, GraderBase
from grpo_engine.graders.pool.lanes import InlineLane, Lane, ProcessLane, ThreadLane
from grpo_engine.graders.rules.multi import Multi


def open_grading(
    grader: Grader,
    *,
    processes: int = 2,
    deadline_seconds: float = 30.0,
    command: Sequence[str] | None = None,
) -> Grading:
    """Where completions are graded by this rule, until it is closed.

    `processes`: most grading processes at a time; they start when they are first needed.
    `deadline_seconds`: longest time for one completion, or for one part of a `multi`, counted from when its
    turn comes. Scores do not depend on either as long as no deadline passes.
    `command`: another grading process than our own.
    """
    parts = grader.graders if isinstance(grader, Multi) else {grader.label: grader}
    apart = {key: part for key, part in parts.items() if part.execution == "process"}
    process_lane = ProcessLane(apart, 1 if grader.holds_a_model else processes, deadline_seconds, command)
    return Grading(grader, parts, InlineLane(), ThreadLane(deadline_seconds), process_lane)


class Grading:
    """A grader at work. A context manager; `close` leaves no process behind."""

    def __init__(
        self,
        grader: Grader,
        parts: Mapping[str, GraderBase],
        inline: InlineLane,
        threads: ThreadLane,
        processes: ProcessLane,
    ) -> None:
        self._grader = grader
        self._parts = parts
        self._lanes: dict[Execution, Lane] = {"inline": inline, "thread": threads, "process": processes}
        self._processes = processes
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the grading processes that run now; each is also the id of its process group."""
        return self._processes.pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
        """The future score of one completion; `item` as for `grade`. Waits only for rules that run inline.

        The future is cancelled where grading is closed first. Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("grading is closed")
        parts = {
            key: self._lanes[part.execution].submit(key, part, sample, item)
            for key, part in self._parts.items()
        }
        return _Gathering(self._grader, parts).score

    def close(self) -> None:
        """Cancel what waits, kill what runs. May be called again."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()


class _Gathering:
    """Makes one score of the parts' scores when the last of them is there."""

    def __init__(self, grader: Grader, parts: Mapping[str, Future[Score]]) -> None:
        self.score: Future[Score] = Future()
        self._grader = grader
        self._parts = parts
        self._lock = threading.Lock()
        self._missing = len(parts)
        for part in parts.values():
            part.add_done_callback(self._one_less)

    def _one_less(self, _: Future[Score]) -> None:
        with self._lock:
            self._missing -= 1
            complete = self._missing == 0
        if complete:
            self._finish()

    def _finish(self) -> None:
        try:
            score = self._combined()
        except CancelledError:
            self.score.cancel()
            self.score.set_running_or_notify_cancel()
            return
        except Exception as error:  # noqa: BLE001 - whoever waits for the score must hear of it
            self.score.set_exception(error)
            return
        if self.score.set_running_or_notify_cancel():
            self.score.set_result(score)

    def _combined(self) -> Score:
        scores = {key: part.result() for key, part in self._parts.items()}
        if isinstance(self._grader, Multi):
            return self._grader.combine(scores)
        return next(iter(scores.values()))
