"""`string_check`: equality or containment of two templates."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template
from grpo_engine.graders.feedback import excerpt
from grpo_engine.graders.template import render

Operation = Annotated[
    Literal["eq", "ne", "like", "ilike"],
    # OpenAI's enumeration has "ne", its prose "neq"
    BeforeValidator(lambda value: "ne" if value == "neq" else value),
]

_EXPECTED = {
    "eq": "",
    "ne": "anything but ",
    "like": "a text that contains ",
    "ilike": "a text that contains, in upper or lower case, ",
}


class StringCheck(RewardGrader):
    """1.0 if the operation is true, otherwise 0.0."""

    template_fields = ("input", "reference")

    type: Literal["string_check"]
    operation: Operation
    """eq, ne: equal or not, case-sensitive; like: input contains reference; ilike: ignoring case."""
    input: Template
    """Template of the text to grade, such as `{{sample.output_text}}`."""
    reference: Template
    """Template of the text to compare with, such as `{{item.answer}}`."""

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        text, reference = render(self.input, sample, item), render(self.reference, sample, item)
        match self.operation:
            case "like":
                passed = reference in text
            case "ilike":
                passed = reference.casefold() in text.casefold()
            case _:
                passed = (text == reference) is (self.operation == "eq")
        if passed:
            return Graded(1.0)
        return Graded(0.0, f"expected {_EXPECTED[self.operation]}{excerpt(reference)}, found {excerpt(text)}")
