"""A server that runs untrusted Python, each call in its own process (2 ms), in a renewed sandbox.

It fails closed: nothing runs unless the self-test shows that the sandbox contains attacks, or the operator
allows it (`unsafe.py`).
"""

import threading
from collections.abc import Mapping
from typing import Any, Self

from grpo_engine.sandbox.capability import untrusted_interpreter
from grpo_engine.sandbox.process import Limits, Outcome, Sandbox

CALLS_PER_SANDBOX = 500


class PythonServer:
    """One program, which every call runs from the start. Thread-safe; calls take turns.

    The first call starts the sandbox. A new one replaces it after a call that was killed or left something
    behind, and after CALLS_PER_SANDBOX. A call raises SandboxUnavailable if the sandbox cannot start.
    """

    def __init__(self, source: str, limits: Limits = Limits(), *, filename: str = "<grader>") -> None:
        self._interpreter = untrusted_interpreter()
        self._source, self._limits, self._filename = source, limits, filename
        self._sandbox: Sandbox | None = None
        self._calls = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the sandbox now. Raises SandboxUnavailable."""
        with self._lock:
            self._ready()

    def call(self, sample: Mapping[str, Any], item: Mapping[str, Any], timeout: float) -> Outcome:
        """`grade(sample, item)`: a JSON number, or an object with score and feedback."""
        return self.request(timeout, mode="grade", sample=dict(sample), item=dict(item))

    def request(self, timeout: float, **fields: Any) -> Outcome:
        """A call in one of the modes of `guest_modes.py`; takes at most `timeout` plus one second."""
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
