"""Reads JSON from users' programs and servers, or from a model: strict, with finite numbers only."""

import json
import math
from typing import Any, NoReturn

from grpo_engine.graders.base import Graded


class NumberError(ValueError):
    """A number that is not finite."""


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN or Infinity, no number beyond the range of float. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_graded(text: str | bytes) -> Graded:
    """`{"score": number, "feedback"?: text}`, other fields ignored, or a single number. Raises ValueError."""
    try:
        data = parse_json(text if isinstance(text, str) else text.decode("utf-8"))
    except NumberError as error:
        raise ValueError(f"the response is not JSON: {error}") from None
    except ValueError:
        raise ValueError("the response is not JSON") from None
    feedback = None
    if isinstance(data, dict):
        if "score" not in data:
            raise ValueError("the response has no score")
        data, feedback = data["score"], data.get("feedback")
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise ValueError("the score is not a number")
    if not isinstance(feedback, str | None):
        raise ValueError("the feedback is not a string")
    try:
        return Graded(float(data), feedback or "")
    except OverflowError:
        raise ValueError("the score is not a finite number") from None


def _refuse(constant: str) -> NoReturn:
    raise NumberError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NumberError("number out of range")
    return value
