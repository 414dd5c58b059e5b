"""`numeric`: the answer's number equals the reference."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template, row_value
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.numbers import Number, agree, last_number
from grpo_engine.graders.template import render


def _without_brackets(value: Any) -> Any:
    return value.removeprefix("<").removesuffix(">") if isinstance(value, str) else value


Tag = Annotated[
    str, BeforeValidator(_without_brackets), Field(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]*$")
]
"""`answer` or `<answer>`."""


class Numeric(RewardGrader):
    """1.0 if |number - reference| <= max(absolute_tolerance, relative_tolerance * |reference|), otherwise
    0.0.

    The number is the last one of the input: inside its last `<tag>…</tag>` if a tag is given, and inside the
    last `\\boxed{…}` if there is one. A completion without a number is wrong (0.0); a reference without a
    number, or with unusual separators (`3,5`), makes the row unscorable.
    """

    template_fields = ("input", "reference")

    type: Literal["numeric"]
    input: Template = "{{sample.output_text}}"
    """Template of the text to grade; by default the completion. Its last number counts."""
    reference: Template
    """Template of the right answer; its last number counts, so GSM8K's `… #### 72` works."""
    tag: Tag | None = None
    """Only the inside of the last `<tag>…</tag>` counts; null: the whole text."""
    absolute_tolerance: float = Field(0.0, ge=0)
    """Accepted absolute difference; 0 with relative_tolerance 0: exact."""
    relative_tolerance: float = Field(0.0, ge=0, le=1)
    """Accepted difference as a share of the reference, 0 to 1; the larger tolerance counts."""

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        reference = _reference_number(render(self.reference, sample, item))
        number = last_number(render(self.input, sample, item), tag=self.tag)
        absolute, relative = _exact(self.absolute_tolerance), _exact(self.relative_tolerance)
        if number is not None and agree(number, reference, absolute=absolute, relative=relative):
            return Graded(1.0)
        found = f"found {number}" if number is not None else "found no number"
        where = f" in <{self.tag}>" if self.tag is not None else ""
        return Graded(0.0, f"expected {reference}, {found}{where}")

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        found = super().problems(item)
        reference = row_value(self.reference, item)
        if reference is not None:
            try:
                _reference_number(reference)
            except UnscorableError as error:
                found.append(f"{error.message}: {reference[:100]!r}")
        return found


def _reference_number(text: str) -> Number:
    number = last_number(text)
    if number is None:
        raise UnscorableError("invalid_variable_error", "reference has no number")
    if number.is_part:
        reason = "reference has unusual separators in its number; write it like 1,234.5"
        raise UnscorableError("invalid_variable_error", reason)
    return number


def _exact(tolerance: float) -> Fraction:
    """The decimal as written: 0.1 is one tenth, not the nearest binary number."""
    return Fraction(repr(tolerance))
