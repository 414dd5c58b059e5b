"""Where rules run: in the caller, in threads, in processes. Each lane answers with futures of scores.

Boundary: a lane knows nothing of `multi`. Its futures always end: with a score, unscorable where the rule
did not answer in time, or with CancelledError where the lane was closed first.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import LifoQueue
from typing import Any, Protocol

from pydantic import ValidationError

from grpo_engine.contract.records import Sample, Score
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.errors import ErrorCode
from grpo_engine.graders.pool.child import SERVER, ChildError, ChildLateError, GradingChild
from grpo_engine.graders.pool.outcome import grade_safely, late
from grpo_engine.graders.pool.wire import hello, request
from grpo_engine.sandbox.launch import nobody_who_reads

THREADS = 32
_RUNS_CODE = ("python", "code_tests")


class Lane(Protocol):
    """Grades with the rules it was made for; `key` says which."""

    def submit(
        self, key: str, grader: GraderBase, sample: Sample, item: Mapping[str, Any]
    ) -> Future[Score]: ...

    def close(self) -> None: ...


class InlineLane:
    """At once, in the caller's thread."""

    def submit(self, key: str, grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
        future: Future[Score] = Future()
        future.set_result(grade_safely(grader, sample, item))
        return future

    def close(self) -> None:
        """Nothing is left running."""


class ThreadLane:
    """Up to THREADS rules at a time, each in a thread of its own that is left behind at the deadline.

    A thread cannot be killed: it ends when the rule's own time-outs end it.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._waiters = ThreadPoolExecutor(THREADS, thread_name_prefix="grading-waiter")
        self._lock = threading.Lock()
        self._open: set[Future[Score]] = set()
        self._closed = False

    def submit(self, key: str, grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
        return self._waiters.submit(self._grade, grader, sample, item)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiting = tuple(self._open)
        for future in waiting:
            future.cancel()
        self._waiters.shutdown(cancel_futures=True)

    def _grade(self, grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Score:
        future: Future[Score] = Future()
        with self._lock:
            if self._closed:
                raise CancelledError
            self._open.add(future)
        threading.Thread(target=_fulfil, args=(future, grader, sample, item), daemon=True).start()
        try:
            return future.result(self._deadline_seconds)
        except TimeoutError:
            return late(grader, self._deadline_seconds)
        finally:
            with self._lock:
                self._open.discard(future)


def _fulfil(future: Future[Score], grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> None:
    score = grade_safely(grader, sample, item)
    if future.set_running_or_notify_cancel():
        future.set_result(score)


class ProcessLane:
    """Up to `processes` rules at a time, each in a grading process that is killed at the deadline."""

    def __init__(
        self,
        graders: Mapping[str, GraderBase],
        processes: int,
        deadline_seconds: float,
        command: Sequence[str] | None = None,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        first, command = hello(graders), command or (*_rights(graders.values()), *SERVER)
        self._children = [GradingChild(first, command) for _ in range(processes)]
        # Last in, first out: one completion at a time needs one process only.
        self._idle: LifoQueue[GradingChild] = LifoQueue()
        for child in self._children:
            self._idle.put(child)
        self._waiters = ThreadPoolExecutor(processes, thread_name_prefix="grading-process")

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that run now."""
        return [child.pid for child in self._children if child.pid is not None]

    def submit(self, key: str, grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
        return self._waiters.submit(self._grade, key, grader, sample, item)

    def close(self) -> None:
        self._waiters.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.interrupt()
        self._waiters.shutdown()
        for child in self._children:
            child.close()

    def _grade(self, key: str, grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Score:
        child = self._idle.get()
        try:
            asked = request(secrets.randbits(48), key, sample, item)
            return Score.model_validate(child.ask(asked, self._deadline_seconds).get("score"))
        except ChildLateError:
            return late(grader, self._deadline_seconds)
        except ChildError as error:
            return grader.unscorable(_death_code(grader), str(error))
        except ValidationError:
            return grader.unscorable(_death_code(grader), "the grading process answered no score")
        finally:
            self._idle.put(child)


def _rights(graders: Iterable[GraderBase]) -> list[str]:
    """As root a grading process is nobody, unless it has a model, or sandboxes: they drop root themselves."""
    leaves = [getattr(grader, "grader", grader) for grader in graders]
    if any(_runs_code(grader) or grader.holds_a_model for grader in leaves):
        return []
    return nobody_who_reads(sys.executable, sys.prefix, __file__)


def _death_code(grader: GraderBase) -> ErrorCode:
    return "python_grader_server_error" if _runs_code(grader) else "other_error"


def _runs_code(grader: GraderBase) -> bool:
    return getattr(grader, "type", "") in _RUNS_CODE
