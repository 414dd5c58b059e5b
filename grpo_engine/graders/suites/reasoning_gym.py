"""`reasoning_gym`: the `score_answer` of a Reasoning Gym task, run in a sandbox.

Scorers of the suite evaluate answers with `eval` and sympy, so they run where `python` graders run, with the
installed packages visible. Boundary: this process never imports the suite.
"""

import atexit
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.numbers import tagged
from grpo_engine.graders.rules.numeric import Tag
from grpo_engine.graders.untrusted_json import read_graded
from grpo_engine.sandbox import Limits, PythonServer, SandboxUnavailable
from grpo_engine.sandbox.launch import package_folders

SCORE_SECONDS = 10.0
PLOTS = (
    *("matplotlib", "matplotlib.animation", "matplotlib.collections", "matplotlib.pyplot"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d", "mpl_toolkits.mplot3d.Axes3D"),
)
"""Imports for plots, which take nearly half of the suite's import time, although no task draws."""
START_SECONDS = 60.0
"""Reasoning Gym and sympy are imported once for each sandbox."""


class ReasoningGym(RewardGrader):
    """The score from 0 to 1 that a Reasoning Gym task gives the answer.

    For rows of a `dataset` of the type `reasoning_gym`. An answer that the task's scorer fails on, or
    needs more than 10 seconds for, is wrong (0.0).
    """

    runs_in = "process"

    type: Literal["reasoning_gym"]
    tag: Tag | None = None
    """Only the inside of the last `<tag>…</tag>` counts, and a completion without it is wrong; null: the
    whole text."""

    def prepare(self) -> None:
        """Import the suite in the sandbox now, so that its time is not part of the first completion's."""
        with suppress(SandboxUnavailable):
            _server(os.getpid()).start()

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        of = item.get("reasoning_gym")
        is_own = isinstance(of, Mapping) and {"task", "config", "metadata"} <= of.keys() and "answer" in item
        return [] if is_own else ["it is not a row of a `dataset` of the type reasoning_gym"]

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        if problems := self.problems(item):
            raise UnscorableError("invalid_variable_error", problems[0])
        text = sample.output_text
        answer = text if self.tag is None else tagged(text, self.tag)
        if answer is None:
            return Graded(0.0, f"no <{self.tag}>…</{self.tag}>")
        try:
            outcome = _server(os.getpid()).call({"output_text": answer.strip()}, item, SCORE_SECONDS)
        except SandboxUnavailable as error:
            raise UnscorableError("python_grader_server_error", str(error)) from None
        if outcome.timed_out:
            return Graded(0.0, f"scoring the answer took more than {SCORE_SECONDS:g} s")
        if outcome.value is None:
            raise UnscorableError("python_grader_runtime_error", outcome.error)
        try:
            graded = read_graded(outcome.value)
        except ValueError as error:
            raise UnscorableError("python_grader_runtime_error", str(error)) from None
        return graded._replace(reward=min(1.0, max(0.0, graded.reward)))


@cache
def _server(pid: int) -> PythonServer:
    """This process's sandbox with the suite; a forked process does not use its parent's."""
    limits = Limits(
        preload=("reasoning_gym",),
        left_out=PLOTS,
        packages=package_folders(),
        start_seconds=START_SECONDS,
    )
    source = Path(__file__).with_name("reasoning_gym_tasks.py").read_text(encoding="utf-8")
    server = PythonServer(source, limits, filename="<reasoning_gym>")
    atexit.register(lambda: server.close() if os.getpid() == pid else None)
    return server
