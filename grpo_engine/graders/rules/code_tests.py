"""`code_tests`: runs the completion's code against the row's tests in a sandbox; the verdict is made outside.

The sandbox gets the code and one input at a time, never the expected result. Values come out as bounded JSON
and are compared here. An exit code, a printed PASS or an early end never means passed.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from grpo_engine.contract.records import Explanation, Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template, row_value
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.explanations import explanation, shown
from grpo_engine.graders.numbers import tagged
from grpo_engine.graders.rules.code_verdict import Test, code_of, read_tests
from grpo_engine.graders.rules.numeric import Tag
from grpo_engine.graders.template import render
from grpo_engine.process import deadline
from grpo_engine.sandbox import Limits, Outcome, PythonServer, SandboxUnavailable, self_test

MAX_CODE_CHARACTERS = 256_000
FORM = 'a JSON list of {"call", "args", "expected"} or {"stdin", "expected_stdout"} objects'
"""How an error message describes tests; many datasets have assert statements instead."""
_LIMITS = Limits(memory_bytes=2**30, processes=32)
_MEMORY = re.compile(r"processes used more than [0-9,]+ bytes")
"""Finds the sandbox's own message."""


class CodeTests(RewardGrader):
    """Reward = fraction of the tests that pass; with `scoring` all, 1.0 if every test passes, otherwise 0.0.

    A test is `{"call": "add", "args": [1, 2], "kwargs": {}, "expected": 3}` or
    `{"stdin": "1 2\\n", "expected_stdout": "3\\n"}`. Each test runs the code in its own process.
    Code that does not compile, raises, exits, takes too long or needs more than 1 GiB fails its tests.
    Rollouts and grader runs show each test with its actual and expected result, or why it has no result.
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
    """Time limit of all tests of a completion, at most the time limit for grading it; tests that do not run
    in time have failed."""
    tolerance: float = Field(1e-9, ge=0, le=1)
    """Absolute and relative tolerance for comparing floats."""
    max_tests: int = Field(100, ge=1, le=1000)
    """Maximum tests per row; further ones are ignored."""
    scoring: Literal["fraction", "all"] = "fraction"
    """fraction: share of passed tests; all: 1 only if every test passes."""

    def prepare(self) -> None:
        """Run the sandbox's self-test now, so that its time is not part of the first completion's."""
        self_test()

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        found = super().problems(item)
        text = row_value(self.tests, item)
        if text is not None:
            try:
                read_tests(text)
            except ValueError as error:
                found.append(f"its tests do not parse as {FORM}: {error}")
        return found

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        text = render(self.code, sample, item)
        code = code_of(text if self.tag is None else tagged(text, self.tag) or "")
        tests = self._tests(sample, item)
        if len(code) > MAX_CODE_CHARACTERS:
            return Graded(0.0, f"the code is longer than {MAX_CODE_CHARACTERS:,} characters")
        try:
            with PythonServer(code, _LIMITS, filename="<code>") as server:
                results = list(self._results(server, tests))
        except SandboxUnavailable as error:
            raise UnscorableError("python_grader_server_error", str(error)) from None
        failed = [result for result in results if not result.passed]
        share = (len(tests) - len(failed)) / len(tests)
        reward = share if self.scoring == "fraction" else float(not failed)
        return Graded(reward, _feedback(failed[0]) if failed else "", shown(results))

    def _tests(self, sample: Sample, item: Mapping[str, Any]) -> list[Test]:
        try:
            return read_tests(render(self.tests, sample, item))[: self.max_tests]
        except ValueError as error:
            raise UnscorableError("invalid_variable_error", f"the tests do not parse: {error}") from None

    def _results(self, server: PythonServer, tests: list[Test]) -> Iterator[Explanation]:
        """Each test with its result."""
        total = self._total_seconds()
        end = time.monotonic() + total
        for number, test in enumerate(tests, 1):
            label = f"test {number} of {len(tests)}: {test.shown}"
            seconds = min(self.timeout_seconds, end - time.monotonic())
            if seconds > 0:
                outcome = server.request(seconds, **test.request)
                yield _result(label, test, outcome, self.tolerance, seconds)
            else:
                detail = f"not run: the tests together took {total:.3g} s"
                yield explanation(label, passed=False, expected=test.expectation, detail=detail)

    def _total_seconds(self) -> float:
        """Time for all tests, which end before the grading process is killed. Raises UnscorableError."""
        limit = deadline.current()
        if limit.seconds_left == 0:
            late = f"no answer within {limit.seconds:g} seconds"
            raise UnscorableError("unresponsive_reward_error", late)
        return min(self.total_timeout_seconds, limit.seconds_left)


def _result(label: str, test: Test, outcome: Outcome, tolerance: float, seconds: float) -> Explanation:
    """The test's result; `got` is empty if there is none or it is right."""
    if outcome.value is None:
        detail = _reason(outcome, seconds)
        return explanation(label, passed=False, expected=test.expectation, detail=detail)
    got = test.judge(outcome.value, outcome.output, tolerance)
    return explanation(label, passed=not got, got=got, expected=test.expectation if got else "")


def _reason(outcome: Outcome, seconds: float) -> str:
    """Why a test has no result."""
    if outcome.timed_out:
        return f"no result within {seconds:.3g} s: the code may loop"
    last_line = (outcome.error.strip().splitlines() or ["no answer"])[-1]
    if last_line.startswith("MemoryError") or _MEMORY.search(last_line):
        return f"out of memory: more than {_LIMITS.memory_bytes // 2**20:,} MiB"
    return last_line


def _feedback(failed: Explanation) -> str:
    """Why the test failed, in a sentence."""
    claim = f"{_short(failed.label)} should give {_short(failed.expected)}"
    return f"{claim}, got {_short(failed.got)}" if failed.got else f"{claim}: {_short(failed.detail)}"


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:60]}...{text[-27:]}"
