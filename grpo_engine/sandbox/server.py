"""Untrusted Python as a server: 2 ms a call, each in a process of its own, in a sandbox that is renewed.

Boundary: fail closed. Where the self-test has not shown that the sandbox holds, nothing runs, unless the
operator has said so (`unsafe.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_engine.sandbox.probe import untrusted_interpreter
from grpo_engine.sandbox.process import Limits, Outcome, Sandbox

CALLS_PER_SANDBOX = 500


class PythonServer:
    """One program, run anew by every call. Safe to call from several threads; calls take turns.

    The sandbox is started by the first call, and a new one follows after a call that was killed or left
    something behind, and after CALLS_PER_SANDBOX. A call raises SandboxUnavailable where it cannot start.
    """

    def __init__(self, source: str, limits: Limits = Limits(), *, filename: str = "<grader>") -> None:
        self._interpreter = untrusted_interpreter()
        self._source, self._limits, self._filename = source, limits, filename
        self._sandbox: Sandbox | None = None
        self._calls = 0
        self._lock = threading.Lock()

    def __enter__(self) -> PythonServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, sample: Mapping[str, Any], item: Mapping[str, Any], timeout: float) -> Outcome:
        """`grade(sample, item)`: a JSON number, or an object of score and feedback."""
        return self.request(timeout, mode="grade", sample=dict(sample), item=dict(item))

    def request(self, timeout: float, **fields: Any) -> Outcome:
        """A call in one of the modes of `guest_modes.py`; never longer than `timeout` and a second."""
        with self._lock:
            sandbox = self._ready()
            self._calls += 1
            outcome = sandbox.request(timeout, **fields)
            if not outcome.reusable:
                self._end()
            return outcome

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ready(self) -> Sandbox:
        if self._sandbox is not None and (self._calls >= CALLS_PER_SANDBOX or not self._sandbox.alive):
            self._end()
        if self._sandbox is None:
            self._sandbox = Sandbox(self._interpreter, self._source, self._filename, self._limits)
            self._calls = 0
        return self._sandbox

    def _end(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


@dataclass(frozen=True)
class RunResult:
    """What a one-shot run printed and made of its last line."""

    stdout: str
    """Standard output and error in order, bounded."""
    value: str = ""
    """`repr` of the expression that the code ends with; empty where it is None or no expression."""
    error: str = ""
    """Traceback's end, or why there was no end; empty where it ran through."""
    timed_out: bool = False


def run_python(code: str, *, timeout: float, input: str = "", limits: Limits = Limits()) -> RunResult:
    """Runs code as a notebook's cell in a fresh sandbox. Raises SandboxUnavailable where there is none."""
    with PythonServer(code, limits, filename="<code>") as server:
        outcome = server.request(timeout, mode="cell", stdin=input)
    return RunResult(outcome.output, _text(outcome.value), outcome.error, outcome.timed_out)


def _text(value: str | None) -> str:
    """The text that the untrusted side sent as JSON; empty where it is anything else."""
    try:
        text = json.loads(value or "null")
    except (ValueError, RecursionError):
        return ""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""
