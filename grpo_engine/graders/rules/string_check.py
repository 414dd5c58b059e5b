"""`string_check`: equality or containment of two templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import RewardGrader, Template
from grpo_engine.graders.feedback import excerpt
from grpo_engine.graders.template import render

Operation = Annotated[
    Literal["eq", "ne", "like", "ilike"],
    # OpenAI's prose says "neq" where its enumeration says "ne".
    BeforeValidator(lambda value: "ne" if value == "neq" else value),
]

_WANTED = {
    "eq": "",
    "ne": "anything but ",
    "like": "a text that contains ",
    "ilike": "a text that contains, in upper or lower case, ",
}


class StringCheck(RewardGrader):
    """1.0 if the operation is true, otherwise 0.0."""

    type: Literal["string_check"]
    operation: Operation
    """eq, ne: equal or not, case-sensitive; like: input contains reference; ilike: ignoring case."""
    input: Template
    """Template of the text to grade, such as `{{sample.output_text}}`."""
    reference: Template
    """Template of the text to compare with, such as `{{item.answer}}`."""

    def templates(self) -> dict[str, str]:
        return {"input": self.input, "reference": self.reference}

    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        text = render(self.input, sample, item)
        reference = render(self.reference, sample, item)
        if self.operation == "like":
            return float(reference in text)
        if self.operation == "ilike":
            return float(reference.casefold() in text.casefold())
        return float((text == reference) is (self.operation == "eq"))

    def feedback(self, sample: Sample, item: Mapping[str, Any], reward: float) -> str:
        if reward == 1.0:
            return ""
        expected = _WANTED[self.operation] + excerpt(render(self.reference, sample, item))
        return f"expected {expected}, found {excerpt(render(self.input, sample, item))}"
