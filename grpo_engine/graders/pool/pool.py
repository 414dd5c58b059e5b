"""Grading that cannot hang: each grader runs where it may, and every completion gets a score in bounded time.

    with Grading(grader) as grading:
        scores = [future.result() for future in [grading.submit(sample, item) for sample in samples]]

A completion whose grader hangs, floods or crashes is unscorable; the others are not affected.
"""

import itertools
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from grpo_engine.contract.records import Sample, Score
from grpo_engine.graders import Grader
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.pool.executors import ProcessExecutor, ThreadExecutor
from grpo_engine.graders.pool.messages import grade_safely
from grpo_engine.graders.printed import PrintedOutput
from grpo_engine.graders.rules.multi import Multi


class Grading:
    """A grader in use, as a context manager. After `close`, none of its processes is running."""

    def __init__(self, grader: Grader, *, processes: int = 2, deadline_seconds: float = 30.0) -> None:
        """`processes`: maximum number of grading processes; they start when they are first needed.

        `deadline_seconds`: time limit for one completion, or for one part of a `multi`, from the start of its
        grading. Scores depend on neither as long as no deadline passes.
        """
        self._grader = grader
        self._parts = grader.graders if isinstance(grader, Multi) else {grader.label: grader}
        apart = {key: part for key, part in self._parts.items() if part.execution == "process"}
        self._threads = ThreadExecutor(deadline_seconds)
        count = 1 if grader.holds_a_model else processes
        self._processes = ProcessExecutor(apart, count, deadline_seconds)
        self._closed = False
        self.printed = PrintedOutput()

    @property
    def pids(self) -> list[int]:
        """Ids of the running grading processes; each is also the id of its process group."""
        return self._processes.pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
        """The future score of one completion; waits only for graders that run inline.

        The future is cancelled if grading is closed first. Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError("grading is closed")
        scores = {key: self._submit_part(key, part, sample, item) for key, part in self._parts.items()}
        return _gathered(self._grader, scores)

    def close(self) -> None:
        """Cancel waiting completions and kill running graders. May be called again."""
        self._closed = True
        self._threads.close()
        self._processes.close()

    def _submit_part(
        self, key: str, part: GraderBase, sample: Sample, item: Mapping[str, Any]
    ) -> Future[Score]:
        match part.execution:
            case "process":
                return self._processes.submit(key, part, sample, item)
            case "thread":
                return self._threads.submit(part, sample, item)
        done: Future[Score] = Future()
        done.set_result(grade_safely(part, sample, item))
        return done


def _gathered(grader: Grader, parts: Mapping[str, Future[Score]]) -> Future[Score]:
    """The future of the combined score; it ends with the last part."""
    combined: Future[Score] = Future()
    count = itertools.count(1)  # next() is atomic: only one callback sees the last number

    def one_done(_: Future[Score]) -> None:
        if next(count) == len(parts):
            _finish(combined, grader, parts)

    for part in parts.values():
        part.add_done_callback(one_done)
    return combined


def _finish(combined: Future[Score], grader: Grader, parts: Mapping[str, Future[Score]]) -> None:
    try:
        scores = {key: part.result() for key, part in parts.items()}
        score = grader.combine(scores) if isinstance(grader, Multi) else next(iter(scores.values()))
    except CancelledError:
        combined.cancel()
        combined.set_running_or_notify_cancel()
    except Exception as error:  # noqa: BLE001 - raised in the thread that waits for the score
        combined.set_exception(error)
    else:
        if combined.set_running_or_notify_cancel():
            combined.set_result(score)
