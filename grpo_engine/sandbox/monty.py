"""`python` graders without bubblewrap: pydantic-monty 1.4.0, a Python subset without an operating system.

Never for a model's code. The package is an extra and is imported when it is needed.
"""

import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Self

from grpo_engine.sandbox.launch import SandboxUnavailable
from grpo_engine.sandbox.process import Limits, Outcome

MAX_ERROR_CHARACTERS = 2000
_LIMITS = Limits()
_CHECK_SECONDS = 2.0
_KILLED = "killed after exceeding request timeout"
"""The pool's message if the worker does not end at its own time limit, as on a busy machine."""


@cache
def installed() -> bool:
    return importlib.util.find_spec("pydantic_monty") is not None


def subset_problems(source: str) -> list[str]:
    """Why this grader does not run in the subset; empty if it does. Its module level is run to find out.

    Raises SandboxUnavailable if pydantic-monty is missing.
    """
    with MontyServer(source) as server:
        error = server.load(_CHECK_SECONDS).error
    return [error] if error else []


class MontyServer:
    """Like `PythonServer`, for graders within the subset; each call has a fresh session in a worker process.

    Raises SandboxUnavailable if pydantic-monty is missing or its worker does not start.
    """

    def __init__(self, source: str) -> None:
        if not installed():
            raise SandboxUnavailable("pydantic-monty is not installed")
        import pydantic_monty

        self._source, self._monty = source, pydantic_monty
        try:
            self._pool = pydantic_monty.Monty(max_processes=1)
            self._pool.__enter__()
        except (OSError, RuntimeError, pydantic_monty.MontyError) as error:
            raise SandboxUnavailable(f"pydantic-monty does not start: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def load(self, timeout: float) -> Outcome:
        """Run the module level; the outcome is an error if it defines no `grade`."""
        return self._feed(timeout, {}, "grade is not None")

    def call(self, sample: Mapping[str, Any], item: Mapping[str, Any], timeout: float) -> Outcome:
        """`grade(sample, item)`: a JSON number, or an object with score and feedback."""
        return self._feed(timeout, {"sample": dict(sample), "item": dict(item)}, "grade(sample, item)")

    def close(self) -> None:
        self._pool.__exit__(None, None, None)

    def _feed(self, timeout: float, inputs: dict[str, Any], expression: str) -> Outcome:
        """Run the module level and the expression, each within the time limit."""
        limits = self._monty.ResourceLimits(
            max_feed_duration_secs=timeout, max_memory=_LIMITS.memory_bytes, max_total_sleep_secs=1.0
        )
        printed = self._monty.CollectString(_LIMITS.output_bytes)
        try:
            with self._pool.checkout(script_name="grader.py", limits=limits) as session:
                session.feed_run(self._source, print_callback=printed)
                value = session.feed_run(expression, inputs=inputs, print_callback=printed)
            return Outcome(value=json.dumps(value, allow_nan=False), output=printed.output)
        except self._monty.MontyError as error:
            text = error.display() if hasattr(error, "display") else str(error)
            if _KILLED in text[:200]:
                text = f"time limit exceeded: {text}"
            late = "time limit exceeded" in text[-200:]
            reason = text[-MAX_ERROR_CHARACTERS:] or type(error).__name__
            return Outcome(error=reason, output=printed.output, timed_out=late)
        except (TypeError, ValueError, RecursionError) as error:
            return Outcome(error=f"grade() must return a number: {error}"[:MAX_ERROR_CHARACTERS])
