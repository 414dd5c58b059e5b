"""`math`: symbolic equality of two answers, judged by math-verify.

Text is parsed by math-verify's grammars only, never by `sympify` or `eval`. math-verify may run forever, so
the grader runs in a grading process. math-verify's time limits, 5 seconds for each text and each comparison,
work only in a main thread; elsewhere they are off.
"""

import threading
from collections.abc import Mapping
from typing import Any, Literal

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template, row_value
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.feedback import excerpt
from grpo_engine.graders.template import render

MAX_INPUT_CHARACTERS = 4096
"""Only the end of a longer input is read: the answer is there, and parsing takes more than linear time."""
MAX_REFERENCE_CHARACTERS = 4096
_SECONDS = 5
"""math-verify's default for parsing a text and for comparing two answers."""


class MathAnswer(RewardGrader):
    """1.0 if math-verify finds the input's answer equal to the reference, otherwise 0.0.

    `verify(parse(reference), parse(input))` with math-verify's default extraction: LaTeX (`$…$`, `\\[…\\]`,
    `\\boxed{…}`, `\\frac`) and plain numbers and expressions. A reference in which it finds nothing, such as
    the bare LaTeX `x^2+1`, is read as `\\boxed{x^2+1}`. In other bare LaTeX it may find only a part (`2` in
    `2\\sqrt{2}`): write `"${{item.answer}}$"` for such rows. The minus sign U+2212 is read as `-`.
    A completion that cannot be parsed, or takes math-verify more than 5 seconds, is wrong (0.0); a reference
    that cannot be parsed makes the row unscorable.
    """

    runs_in = "process"
    template_fields = ("input", "reference")

    type: Literal["math"]
    input: Template = "{{sample.output_text}}"
    """Template of the text to grade; by default the completion. Only its last 4,096 characters count."""
    reference: Template
    """Template of the right answer, in LaTeX or plain text."""

    def prepare(self) -> None:
        """Load math-verify and sympy and build their parsers."""
        equal("$1$", "$1$")

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        reference = render(self.reference, sample, item)
        if problem := _problem(reference):
            raise UnscorableError("invalid_variable_error", problem)
        is_equal = equal(reference, render(self.input, sample, item)[-MAX_INPUT_CHARACTERS:])
        if is_equal is None:
            message = f"math-verify finds no answer in the reference {excerpt(reference)}"
            raise UnscorableError("invalid_variable_error", message)
        if is_equal:
            return Graded(1.0)
        return Graded(0.0, f"the answer is not equal to the expected {excerpt(reference)}")

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        found = super().problems(item)
        reference = row_value(self.reference, item)
        if reference is not None and (problem := _problem(reference)):
            found.append(problem)
        return found


def equal(reference: str, answer: str) -> bool | None:
    """Whether math-verify finds them equal; None if it finds nothing in the reference. May run forever."""
    import math_verify  # here: sympy takes half a second, and only grading processes need it

    # the limits use alarm signals: main thread only, and long multiplications are not interrupted
    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None

    def parsed(text: str) -> list[Any]:
        return list(math_verify.parse(text.replace("−", "-"), parsing_timeout=seconds))

    gold = parsed(reference) or parsed(f"\\boxed{{{reference}}}")
    if not gold:
        return None
    return bool(math_verify.verify(gold, parsed(answer), timeout_seconds=seconds))


def _problem(reference: str) -> str:
    """What is wrong with the reference, checked without math-verify; empty if nothing is."""
    if not reference.strip():
        return "reference is empty"
    if len(reference) > MAX_REFERENCE_CHARACTERS:
        return f"reference has {len(reference)} characters, at most {MAX_REFERENCE_CHARACTERS}"
    return ""
