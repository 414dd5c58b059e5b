"""What graders that send requests to servers share. Boundary: reads responses, sends nothing."""

from __future__ import annotations

import math
from typing import Any

from grpo_engine.graders.base import EvaluatingGrader, Execution, Graded
from grpo_engine.graders.samples import parse_json


class RemoteGrader(EvaluatingGrader):
    """A rule that sends one request to a server for each completion."""

    @property
    def execution(self) -> Execution:
        return "thread"


def read_response(text: str | bytes) -> Graded:
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
    return Graded(_finite(data), feedback)


def _finite(number: float) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError("the score is not a finite number")
    return value
