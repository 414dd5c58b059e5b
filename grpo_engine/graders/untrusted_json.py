"""Reads a grade from the JSON that users' programs and servers, or a model, return."""

from grpo_engine.contract.strict_json import StrictJsonError, parse_json
from grpo_engine.graders.base import Graded


def read_graded(text: str | bytes) -> Graded:
    """`{"score": number, "feedback"?: text}`, other fields ignored, or a single number. Raises ValueError."""
    try:
        data = parse_json(text if isinstance(text, str) else text.decode("utf-8"))
    except StrictJsonError as error:
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
