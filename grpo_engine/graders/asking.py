"""What graders that ask somebody else share: a verdict is a score and, maybe, what to do better.

Boundary: reads verdicts; asks nobody itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from grpo_engine.contract.records import GradeError, Sample, Score
from grpo_engine.graders.base import Execution, GraderBase
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.excerpt import told
from grpo_engine.graders.samples import parse_json


class Verdict(NamedTuple):
    """What was answered."""

    score: float
    """Finite."""
    feedback: str = ""


class AskingGrader(GraderBase):
    """A rule that asks a server once per completion, for the score and the feedback together."""

    @property
    def execution(self) -> Execution:
        return "thread"

    def verdict(self, sample: Sample, item: Mapping[str, Any]) -> Verdict:
        """The server's answer. Raises UnscorableError."""
        raise TypeError(f"{type(self).__name__} asks nobody")

    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        return self.verdict(sample, item).score

    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        try:
            verdict = self.verdict(sample, item)
        except UnscorableError as error:
            problem = GradeError(code=error.code, message=error.message)
            return Score(reward=None, parts={self.label: None}, errors={self.label: problem})
        return Score(reward=verdict.score, parts={self.label: verdict.score}, feedback=told(verdict.feedback))


def read_verdict(text: str | bytes) -> Verdict:
    """`{"score": number, "feedback"?: text}`, other fields ignored, or a lone number. Raises ValueError.

    Strict JSON: no text around it, and no number that is not finite.
    """
    try:
        data = parse_json(text if isinstance(text, str) else text.decode("utf-8"))
    except ValueError:
        raise ValueError("the answer is not JSON") from None
    feedback: Any = ""
    if isinstance(data, dict):
        if "score" not in data:
            raise ValueError("the answer has no score")
        feedback = "" if data.get("feedback") is None else data["feedback"]
        data = data["score"]
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise ValueError("the score is not a number")
    if not isinstance(feedback, str):
        raise ValueError("the feedback is not a text")
    return Verdict(_finite(data), feedback)


def _finite(number: float) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError("the score is not a finite number")
    return value
