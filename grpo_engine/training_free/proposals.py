"""Parses a reflecting model's answer into operations.

Strict: one JSON object, alone or in a code fence, with known and complete operations only.
"""

import re

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_engine.config.tool_formats import THOUGHTS_END
from grpo_engine.contract.records import first_problem
from grpo_engine.contract.strict_json import parse_json
from grpo_engine.training_free.library import Operation

MAX_LISTED = 512
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    operations: list[Operation] = Field(max_length=MAX_LISTED)


def read_operations(text: str) -> list[Operation]:
    """`{"operations": […]}` → operations in order. Raises ValueError with a sentence for the model."""
    body = without_thoughts(text)
    fenced = _FENCE.findall(body)
    try:
        found = parse_json(fenced[-1] if fenced else body)
    except ValueError:
        raise ValueError("it is not a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError("it is JSON, but not an object")
    try:
        return _Answer.model_validate(found).operations
    except ValidationError as error:
        place, message = first_problem(error)
        raise ValueError(f"at {place}: {message}") from None


def without_thoughts(text: str) -> str:
    """The answer of a reasoning model without its thoughts."""
    return text.rpartition(THOUGHTS_END)[2].strip()
