"""Runs graders in threads and in processes, and returns futures of their scores.

Every future ends: with a score (unscorable if the grader did not answer in time), or with CancelledError if
the executor was closed first.
"""

import secrets
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import LifoQueue
from typing import Any

from pydantic import ValidationError

from grpo_engine.contract.records import GradeErrorCode, Sample, Score
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.pool.child import ChildError, ChildTimeoutError, GradingChild
from grpo_engine.graders.pool.messages import grade_safely, request, start_message
from grpo_engine.graders.rules import reward_model
from grpo_engine.sandbox.launch import unprivileged_reader_prefix

SERVER = "grpo_engine.graders.pool.server"
THREADS = 32
ANSWER_SECONDS = 2.0
_RUNS_CODE = ("python", "code_tests", "reasoning_gym")


class ThreadExecutor:
    """Up to THREADS graders at a time, each in a thread that is abandoned at the deadline.

    A thread cannot be killed: it ends when the grader's own time limits end it.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._waiters = ThreadPoolExecutor(THREADS, thread_name_prefix="grading-waiter")
        self._lock = threading.Lock()
        self._open: set[Future[Score]] = set()
        self._closed = False

    def submit(self, grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Future[Score]:
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
            return _late(grader, self._deadline_seconds)
        finally:
            with self._lock:
                self._open.discard(future)


def _fulfil(future: Future[Score], grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> None:
    score = grade_safely(grader, sample, item)
    if future.set_running_or_notify_cancel():
        future.set_result(score)


def _late(grader: GraderBase, seconds: float) -> Score:
    return grader.unscorable("unresponsive_reward_error", f"no answer within {seconds:g} seconds")


class ProcessExecutor:
    """Up to `processes` graders at a time, each in a grading process that is killed at the deadline."""

    def __init__(self, graders: Mapping[str, GraderBase], processes: int, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        first, command = start_message(graders), grading_command(graders.values())
        self._children = [GradingChild(first, command) for _ in range(processes)]
        # last in, first out, so that grading one completion at a time starts only one process
        self._idle: LifoQueue[GradingChild] = LifoQueue()
        for child in self._children:
            self._idle.put(child)
        self._waiters = ThreadPoolExecutor(processes, thread_name_prefix="grading-process")

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
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
            seconds = self._deadline_seconds
            line = request(secrets.randbits(48), key, sample, item, seconds)
            return Score.model_validate(child.request(line, seconds + _grace(grader)).get("score"))
        except ChildTimeoutError:
            return _late(grader, self._deadline_seconds)
        except ChildError as error:
            return grader.unscorable(_child_error_code(grader), str(error))
        except ValidationError:
            return grader.unscorable(_child_error_code(grader), "the grading process returned no score")
        finally:
            self._idle.put(child)


def grading_command(graders: Iterable[GraderBase]) -> list[str]:
    """Command of the grading process. It runs without root, except if graders load a model or run code."""
    leaves = [_leaf(grader) for grader in graders]
    if any(grader.holds_a_model for grader in leaves):
        return [sys.executable, "-P", "-m", reward_model.SERVER]
    keeps_root = any(map(_runs_code, leaves))
    prefix = [] if keeps_root else unprivileged_reader_prefix(sys.executable, sys.prefix, __file__)
    return [*prefix, sys.executable, "-P", "-m", SERVER]


def _grace(grader: GraderBase) -> float:
    """Seconds after the deadline until the grading process is killed.

    A `python` grader's call ends at the deadline, and then its prints must still arrive; so must the results
    of tests of code, which end then too.
    """
    ends_itself = getattr(_leaf(grader), "type", "") in ("python", "code_tests")
    return ANSWER_SECONDS if ends_itself else 0.0


def _leaf(grader: GraderBase) -> Any:
    return getattr(grader, "grader", grader)


def _child_error_code(grader: GraderBase) -> GradeErrorCode:
    return "python_grader_server_error" if _runs_code(grader) else "other_error"


def _runs_code(grader: GraderBase) -> bool:
    return getattr(grader, "type", "") in _RUNS_CODE
