"""`multi`: several rules and a formula over their rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from grpo_engine.graders import formula as formulas
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.registry import SingleGrader
from grpo_engine.records import GradeError, Sample, Score

FORMULA = "calculate_output"
"""Name under which an error of the formula itself is reported."""


def _as_dict(value: Any) -> Any:
    """Dict, list (by name) or single grader → dict: OpenAI's documents and clients disagree on the shape."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return {value.get("name") or value["type"]: value}
    if not isinstance(value, list | tuple):
        return value
    names = [each.get("name") if isinstance(each, Mapping) else getattr(each, "name", None) for each in value]
    if not all(names):
        raise ValueError(f"the grader at index {[bool(name) for name in names].index(False)} needs a name")
    if len(set(names)) != len(names):
        raise ValueError("graders need different names")
    return dict(zip(names, value, strict=True))


def _not_a_function(key: str) -> str:
    if key in formulas.FUNCTIONS:
        raise ValueError(f"{key} is a function of the formula: choose another name")
    return key


Key = Annotated[
    str, Field(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_not_a_function)
]
"""A variable of the formula."""


class Multi(GraderBase):
    """Reward = the formula over the parts' rewards. A part the formula does not use is only shown."""

    type: Literal["multi"]
    graders: Annotated[
        dict[Key, Annotated[SingleGrader, Field(discriminator="type")]],
        BeforeValidator(_as_dict),
        Field(min_length=1, max_length=32),
    ]
    calculate_output: str
    """`0.8*a + 0.2*b`: + - * / ^, parentheses, min max abs floor ceil exp sqrt log, graders' names."""
    invalid_grade: float | None = None
    """Reward where a part is unscorable or the formula has no finite value; None: unscorable then."""

    @field_validator("calculate_output")
    @classmethod
    def _parses(cls, text: str, info: ValidationInfo) -> str:
        variables = formulas.parse(text).variables
        graders = info.data.get("graders")
        if graders is not None and (unknown := sorted(variables - graders.keys())):
            raise ValueError(f"unknown grader {', '.join(unknown)}: there are {', '.join(graders)}")
        return text

    def unresolved(self, item: Mapping[str, Any]) -> list[str]:
        found = [path for part in self.graders.values() for path in part.unresolved(item)]
        return list(dict.fromkeys(found))

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        return [f"{key}: {text}" for key, part in self.graders.items() for text in part.problems(item)]

    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        score = self.grade(sample, item)
        if score.reward is None:
            raise UnscorableError("other_error", "; ".join(e.message for e in score.errors.values()))
        return score.reward

    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        """Parts by key, each with its own error; an error of the formula stands under FORMULA."""
        parts: dict[str, float | None] = {}
        errors: dict[str, GradeError] = {}
        for key, grader in self.graders.items():
            measured = grader.measure(sample, item)
            if isinstance(measured, GradeError):
                parts[key], errors[key] = None, measured
            else:
                parts[key] = measured
        total = self._total(parts)
        if isinstance(total, GradeError):
            errors[FORMULA] = total
            total = None
        return Score(reward=self.invalid_grade if total is None else total, parts=parts, errors=errors)

    def _total(self, parts: Mapping[str, float | None]) -> float | GradeError | None:
        """The formula's value; None where a part that it needs is unscorable."""
        formula = formulas.parse(self.calculate_output)
        scored = {key: reward for key, reward in parts.items() if reward is not None}
        if not formula.variables <= scored.keys():
            return None
        try:
            return formulas.evaluate(formula, scored)
        except formulas.EvaluationError as error:
            return GradeError(code="other_error", message=str(error))
