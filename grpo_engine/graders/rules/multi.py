"""`multi`: several rules and a formula over their rewards."""

from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from grpo_engine.contract.records import LARGEST_REWARD, GradeError, Sample, Score
from grpo_engine.graders import formula as formulas
from grpo_engine.graders.base import Execution, GraderBase
from grpo_engine.graders.explanations import joined
from grpo_engine.graders.registry import LeafGrader
from grpo_engine.graders.rules.process import Process

SingleGrader = LeafGrader | Process
"""Rules that can be a part of `multi`."""
FORMULA = "calculate_output"
"""Name under which an error of the formula is reported."""


def _as_dict(value: Any) -> Any:
    """Dict, list (by name) or single grader → dict. OpenAI's documents and clients differ."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return {value.get("name") or value["type"]: value}
    if not isinstance(value, list | tuple):
        return value
    names = [each.get("name") if isinstance(each, Mapping) else getattr(each, "name", None) for each in value]
    if not all(names):
        raise ValueError(f"the grader at index {[bool(name) for name in names].index(False)} needs a name")
    if len(set(names)) != len(names):
        raise ValueError("two graders have the same name")
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
    """Reward = the formula over the parts' rewards. Parts that the formula does not use are only reported."""

    type: Literal["multi"]
    graders: Annotated[
        dict[Key, Annotated[SingleGrader, Field(discriminator="type")]],
        BeforeValidator(_as_dict),
        Field(min_length=1, max_length=32),
    ]
    """The graders by name; a list or a single grader is accepted too."""
    aggregation: Literal["formula", "gdpo"] = "formula"
    """formula: advantages come from the formula's value; gdpo: from the parts, each normalised per group
    (arXiv 2601.05242)."""
    weights: dict[Key, float] | None = Field(None, validate_default=True)
    """gdpo: weight of each grader by name; 1.0 by default."""
    calculate_output: str = Field("", validate_default=True)
    """Formula over graders' names: `0.8*a + 0.2*b`; + - * / ^ min max abs floor ceil exp sqrt log.
    gdpo: by default the weighted sum."""
    invalid_grade: Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)] | None = None
    """Reward if a part is unscorable or the formula has no finite value; null: unscorable."""

    @field_validator("weights")
    @classmethod
    def _weigh_every_part(
        cls, weights: dict[str, float] | None, info: ValidationInfo
    ) -> dict[str, float] | None:
        if info.data.get("aggregation") != "gdpo":
            if weights is not None:
                raise ValueError("weights require aggregation gdpo")
            return None
        if (graders := info.data.get("graders")) is None:
            return weights  # that error is already reported
        given = weights or {}
        _refuse_unknown(given.keys(), graders)
        return {key: given.get(key, 1.0) for key in graders}

    @field_validator("calculate_output")
    @classmethod
    def _parses(cls, text: str, info: ValidationInfo) -> str:
        if "graders" not in info.data or "weights" not in info.data:
            return text  # that error is already reported
        text = text or _weighted_sum(info.data["weights"])
        _refuse_unknown(formulas.parse(text).variables, info.data["graders"])
        return text

    @property
    def execution(self) -> Execution:
        """Where its most demanding part runs."""
        needed = {part.execution for part in self.graders.values()}
        return "process" if "process" in needed else "thread" if "thread" in needed else "inline"

    @property
    def holds_a_model(self) -> bool:
        return any(part.holds_a_model for part in self.graders.values())

    def prepare(self) -> None:
        for part in self.graders.values():
            part.prepare()

    def templates(self) -> dict[str, str]:
        parts = self.graders.items()
        return {f"{key}.{field}": text for key, part in parts for field, text in part.templates().items()}

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        return [f"{key}: {text}" for key, part in self.graders.items() for text in part.problems(item)]

    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        """All parts, one after the other, in this thread."""
        return self.combine({key: part.grade(sample, item) for key, part in self.graders.items()})

    def combine(self, scores: Mapping[str, Score]) -> Score:
        """Combine the parts' scores, by key.

        Parts are in the graders' order, each with its own error; an error of the formula is under FORMULA.
        Each part's feedback is prefixed with its key.
        """
        parts = {key: scores[key].reward for key in self.graders}
        errors = {
            key: next(iter(scores[key].errors.values())) for key, reward in parts.items() if reward is None
        }
        total = self._total(parts)
        if isinstance(total, GradeError):
            errors[FORMULA] = total
            total = None
        feedback = "\n".join(f"{key}: {scores[key].feedback}" for key in parts if scores[key].feedback)
        reward = self.invalid_grade if total is None else total
        explanations = joined((key, scores[key].explanations) for key in parts)
        printed = {key: text for key in parts for text in scores[key].printed.values()}
        return Score(
            reward=reward,
            parts=parts,
            errors=errors,
            feedback=feedback,
            explanations=explanations,
            printed=printed,
        )

    def _total(self, parts: Mapping[str, float | None]) -> float | GradeError | None:
        """The formula's value; None if a part that it needs is unscorable."""
        formula = formulas.parse(self.calculate_output)
        scored = {key: reward for key, reward in parts.items() if reward is not None}
        if not formula.variables <= scored.keys():
            return None
        try:
            return formulas.evaluate(formula, scored)
        except formulas.EvaluationError as error:
            return GradeError(code="other_error", message=str(error))


def _refuse_unknown(names: Set[str], graders: Mapping[str, Any]) -> None:
    if unknown := sorted(names - graders.keys()):
        raise ValueError(f"unknown grader {', '.join(unknown)}; known: {', '.join(graders)}")


def _weighted_sum(weights: Mapping[str, float] | None) -> str:
    if weights is None:
        raise PydanticCustomError("missing", "Field required")
    return " + ".join(f"{weight!r}*{key}" for key, weight in weights.items())
