"""`math`: symbolic equality of two answers, judged by math-verify.

Boundary: no rule of our own. Text is parsed by math-verify's grammars only, never by `sympify` or `eval`.
It may take for ever, so the kind runs in a grading process, and math-verify's own time-outs, which fail
outside of a main thread, are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from grpo_engine.graders.base import Execution, GraderBase, Template, row_value
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.excerpt import excerpt, told
from grpo_engine.graders.template import render
from grpo_engine.records import Sample

MAX_INPUT_CHARACTERS = 4096
"""Only the end of a longer input is read: answers stand there, and parsing costs more than linear time."""
MAX_REFERENCE_CHARACTERS = 4096


class MathAnswer(GraderBase):
    """1.0 where math-verify finds the input's answer equal to the reference, else 0.0.

    `verify(parse(reference), parse(input))` with math-verify's default extraction: LaTeX (`$…$`, `\\[…\\]`,
    `\\boxed{…}`, `\\frac`) and plain numbers and expressions. LaTeX needs its delimiters, in the reference
    too: write `"${{item.answer}}$"` where the rows hold bare LaTeX.
    An answer that cannot be parsed is wrong (0.0); a reference that cannot makes the row unscorable.
    """

    type: Literal["math"]
    input: Template = "{{sample.output_text}}"
    """Its last MAX_INPUT_CHARACTERS count."""
    reference: Template

    @property
    def execution(self) -> Execution:
        return "process"

    def templates(self) -> dict[str, str]:
        return {"input": self.input, "reference": self.reference}

    def prepare(self) -> None:
        """Load math-verify and sympy and build their parsers."""
        equal("$1$", "$1$")

    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        reference = render(self.reference, sample, item)
        if problem := _problem(reference):
            raise UnscorableError("invalid_variable_error", problem)
        verdict = equal(reference, render(self.input, sample, item)[-MAX_INPUT_CHARACTERS:])
        if verdict is None:
            message = f"math-verify finds no answer in the reference {excerpt(reference)}"
            raise UnscorableError("invalid_variable_error", message)
        return float(verdict)

    def feedback(self, sample: Sample, item: Mapping[str, Any], reward: float) -> str:
        if reward == 1.0:
            return ""
        reference = excerpt(render(self.reference, sample, item))
        return told(f"the answer is not equal to the expected {reference}")

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        found = super().problems(item)
        reference = row_value(self.reference, item)
        if reference is not None and (problem := _problem(reference)):
            found.append(problem)
        return found


def equal(reference: str, answer: str) -> bool | None:
    """Whether math-verify finds them equal; None where it finds nothing in the reference. May never end."""
    import math_verify  # here: sympy takes half a second, and only grading processes need it

    gold = math_verify.parse(reference, parsing_timeout=None)
    if not gold:
        return None
    found = math_verify.parse(answer, parsing_timeout=None)
    return bool(math_verify.verify(gold, found, timeout_seconds=None))


def _problem(reference: str) -> str:
    """What is wrong with it, as far as can be said without math-verify; empty where nothing is."""
    if not reference.strip():
        return "reference is empty"
    if len(reference) > MAX_REFERENCE_CHARACTERS:
        return f"reference has {len(reference)} characters, at most {MAX_REFERENCE_CHARACTERS}"
    return ""
