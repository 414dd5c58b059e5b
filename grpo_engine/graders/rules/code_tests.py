"""`code_tests`: runs the completion's code against the row's tests in a sandbox; the verdict is made outside.

The sandbox gets the code and one input at a time, never the expected result. Values come out as bounded JSON
and are compared here. An exit code, a printed PASS or an early end never means passed.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template, row_value
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.numbers import tagged
from grpo_engine.graders.rules.code_verdict import Test, code_of, read_tests
from grpo_engine.graders.rules.numeric import Tag
from grpo_engine.graders.template import render
from grpo_engine.sandbox import Limits, Outcome, PythonServer, SandboxUnavailable, self_test

MAX_CODE_CHARACTERS = 256_000
_LIMITS = Limits(memory_bytes=2**30, processes=32)


class CodeTests(RewardGrader):
    """Reward = fraction of the tests that pass; with `scoring` all, 1.0 if every test passes, or 0.0.

    A test is `{"call": "add", "args": [1, 2], "kwargs": {}, "expected": 3}` or
    `{"stdin": "1 2\\n", "expected_stdout": "3\\n"}`. Each test runs the code in its own process.
    Code that does not compile, raises, exits or takes too long fails its tests.
    """

    runs_in = "process"
    template_fields = ("code", "tests")

    type: Literal["code_tests"]
    code: Template = "{{sample.output_text}}"
    """Template of the code; its last fenced Python block counts, if there is one."""
    tag: Tag | None = None
    """Only the inside of the last `<tag>…</tag>` counts; null: the whole text."""
    tests: Template
    """Template of a JSON list of tests, such as `{{item.tests}}`."""
    timeout_seconds: float = Field(5.0, gt=0, le=60)
    """Time limit of each test."""
    total_timeout_seconds: float = Field(20.0, gt=0, le=600)
    """Time limit of all tests of a completion; tests that do not run in time have failed."""
    tolerance: float = Field(1e-9, ge=0, le=1)
    """Absolute and relative tolerance for comparing floats."""
    max_tests: int = Field(100, ge=1, le=1000)
    """Maximum tests per row; further ones are ignored."""
    scoring: Literal["fraction", "all"] = "fraction"
    """fraction: share of passed tests; all: 1 only if every test passes."""

    def prepare(self) -> None:
        """Attack the sandbox before the first completion's time begins."""
        self_test()

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        found = super().problems(item)
        text = row_value(self.tests, item)
        if text is not None:
            try:
                read_tests(text)
            except ValueError as error:
                found.append(f"its tests do not parse: {error}")
        return found

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        text = render(self.code, sample, item)
        code = code_of(text if self.tag is None else tagged(text, self.tag) or "")
        tests = self._tests(sample, item)
        if len(code) > MAX_CODE_CHARACTERS:
            return Graded(0.0, f"the code is longer than {MAX_CODE_CHARACTERS:,} characters")
        try:
            with PythonServer(code, _LIMITS, filename="<code>") as server:
                failures = list(self._failures(server, tests))
        except SandboxUnavailable as error:
            raise UnscorableError("python_grader_server_error", str(error)) from None
        if not any(failures):
            return Graded(1.0)
        reward = 0.0 if self.scoring == "all" else failures.count("") / len(tests)
        return Graded(reward, next(filter(None, failures)))

    def _tests(self, sample: Sample, item: Mapping[str, Any]) -> list[Test]:
        try:
            return read_tests(render(self.tests, sample, item))[: self.max_tests]
        except ValueError as error:
            raise UnscorableError("invalid_variable_error", f"the tests do not parse: {error}") from None

    def _failures(self, server: PythonServer, tests: list[Test]) -> Iterator[str]:
        """For each test the reason why it failed; empty if it passed."""
        deadline = time.monotonic() + self.total_timeout_seconds
        for number, test in enumerate(tests, 1):
            seconds = min(self.timeout_seconds, deadline - time.monotonic())
            outcome = server.request(seconds, **test.request) if seconds > 0 else Outcome(timed_out=True)
            reason = _failure(test, outcome, self.tolerance)
            yield f"test {number} of {len(tests)}: {reason}" if reason else ""


def _failure(test: Test, outcome: Outcome, tolerance: float) -> str:
    """Why the test failed; empty if the answer is right."""
    claim = f"{_short(test.shown)} should give {_short(test.expectation)}"
    if outcome.value is None:
        return f"{claim}: {'took too long' if outcome.timed_out else _last_line(outcome.error)}"
    got = test.judge(outcome.value, outcome.output, tolerance)
    return f"{claim}, got {_short(got)}" if got else ""


def _last_line(error: str) -> str:
    """Last line of a traceback, such as `ZeroDivisionError: division by zero`."""
    return _short((error.strip().splitlines() or ["no answer"])[-1])


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:50]}...{text[-27:]}"
