"""What the grader tests share: graders and samples from plain data."""

import os
import select
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.graders import Grader, make_sample

ADAPTER: TypeAdapter[Any] = TypeAdapter(Grader)

EXAMPLES: dict[str, dict[str, Any]] = {
    "string_check": {
        "type": "string_check",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    },
    "numeric": {
        "type": "numeric",
        "reference": "{{item.answer}}",
        "tag": "answer",
        "absolute_tolerance": 0.1,
    },
    "tags": {"type": "format", "tags": ["think", "answer"], "strict": True},
    "pattern": {"type": "format", "pattern": r"\d+", "match": "search"},
    "json_schema": {"type": "format", "json_schema": {"type": "object", "required": ["x"]}},
    "linear": {"type": "length", "mode": "linear", "target": 10, "maximum": 20},
    "soft_overlong": {"type": "length", "mode": "soft_overlong", "maximum": 20, "buffer": 5},
    "multi": {
        "type": "multi",
        "graders": {
            "right": {"type": "numeric", "reference": "{{item.answer}}"},
            "shape": {"type": "format", "tags": ["answer"]},
        },
        "calculate_output": "0.8*right + 0.2*shape",
        "invalid_grade": -1.0,
    },
    "gdpo": {
        "type": "multi",
        "graders": {
            "right": {"type": "numeric", "reference": "{{item.answer}}"},
            "shape": {"type": "format", "tags": ["answer"]},
        },
        "aggregation": "gdpo",
        "weights": {"shape": 0.5},
    },
    "text_similarity": {
        "type": "text_similarity",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
        "evaluation_metric": "fuzzy_match",
    },
    "process": {
        "type": "process",
        "splitter": "lines",
        "grader": {"type": "format", "pattern": r"\d+", "match": "search"},
    },
}


def read(**data: Any) -> Any:
    return ADAPTER.validate_python(data)


def score(
    grader: dict[str, Any], text: str, item: dict[str, Any] | None = None, num_tokens: int = 0
) -> Score:
    sample = make_sample(text, num_tokens=num_tokens, finish_reason=FinishReason.STOP)
    return ADAPTER.validate_python(grader).grade(sample, item or {})


def reward(grader: dict[str, Any], text: str, item: dict[str, Any] | None = None) -> float | None:
    return score(grader, text, item).reward


def refusal(**data: Any) -> tuple[tuple[int | str, ...], str]:
    """Place and message of the first problem of a wrong grader."""
    with pytest.raises(ValidationError) as caught:
        read(**data)
    error = caught.value.errors()[0]
    return error["loc"], error["msg"]


def has_ended(pid: int, seconds: float = 60.0) -> bool:
    """Whether the process is gone within that time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
