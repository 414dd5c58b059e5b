"""The base class of every grader: a frozen record that scores one completion.

A grader never raises for what a model wrote: it returns a `Score` with reward None and the reason.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from grpo_engine.contract.records import (
    LARGEST_REWARD,
    Explanation,
    GradeError,
    GradeErrorCode,
    Input,
    Sample,
    Score,
    is_reward,
)
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.feedback import bounded_feedback
from grpo_engine.graders.template import check, render, row_paths, unresolved, uses_sample

Template = Annotated[str, Field(max_length=65_536), AfterValidator(check)]
"""Text with `{{item.…}}` and `{{sample.…}}`; see `template.py`."""

MAX_ROW_PATHS = 256
"""Maximum number of `{{item.…}}` in a grader's templates. The check of a job resolves each in every row."""

Execution = Literal["inline", "thread", "process"]
"""inline: pure and quick. thread: waits for a network, with its own time limits. process: may hang, flood or
crash, so it runs in a grading process that is killed at its deadline."""


class GraderBase(Input, ABC):
    """Common part of all graders."""

    runs_in: ClassVar[Execution] = "inline"
    template_fields: ClassVar[tuple[str, ...]] = ()

    name: str = Field("", max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")
    """Name in metrics (`rewards/<name>/mean`); default: the type."""

    @model_validator(mode="after")
    def _has_few_row_paths(self) -> Self:
        num = sum(len(row_paths(text)) for text in self.templates().values())
        if num > MAX_ROW_PATHS:
            raise ValueError(
                f"the templates have {num} paths into the row, at most {MAX_ROW_PATHS} are allowed"
            )
        return self

    @property
    def execution(self) -> Execution:
        """Where the grader may run."""
        return self.runs_in

    @property
    def holds_a_model(self) -> bool:
        """Whether it loads a model. If so, only one grading process starts, because each would load it."""
        return False

    def prepare(self) -> None:
        """Load what grading needs, so that the first completion does not pay for it."""

    @property
    def label(self) -> str:
        return self.name or str(getattr(self, "type", "grader"))

    @abstractmethod
    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        """Score of one completion. `item`: the dataset row without `messages` and `tools`."""

    def unscorable(self, code: GradeErrorCode, message: str) -> Score:
        """A score without a reward, with the reason."""
        error = GradeError(code=code, message=message)
        return Score(reward=None, parts={self.label: None}, errors={self.label: error})

    def templates(self) -> dict[str, str]:
        """Field → its template, for the template fields that are set."""
        found = {field: getattr(self, field) for field in self.template_fields}
        return {field: text for field, text in found.items() if text is not None}

    def unresolved(self, item: Mapping[str, Any]) -> list[str]:
        """Template paths (`item.answer`) that this row cannot resolve."""
        found = [path for text in self.templates().values() for path in unresolved(text, item)]
        return list(dict.fromkeys(found))

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        """Reasons why no completion of this row can be scored; empty if there are none."""
        return [f"{{{{{path}}}}} does not resolve" for path in self.unresolved(item)]


class Graded(NamedTuple):
    """A grader's result for one completion."""

    reward: float
    feedback: str = ""
    """What would improve the completion; empty if nothing is known."""
    explanations: tuple[Explanation, ...] = ()
    printed: str = ""
    """What the user's code printed, bounded."""


class RewardGrader(GraderBase):
    """A grader that finds one reward and its feedback."""

    @abstractmethod
    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        """Raises UnscorableError."""

    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        try:
            reward, feedback, explanations, printed = self.evaluate(sample, item)
        except UnscorableError as error:
            unscored = self.unscorable(error.code, error.message)
            return unscored.model_copy(
                update={"printed": {self.label: error.printed} if error.printed else {}}
            )
        if not is_reward(reward):
            message = f"the reward is {reward}, not a finite number up to {LARGEST_REWARD:g}"
            return self.unscorable("other_error", message)
        reward = float(reward)
        return Score(
            reward=reward,
            parts={self.label: reward},
            feedback=bounded_feedback(feedback),
            explanations={self.label: explanations} if explanations else {},
            printed={self.label: printed} if printed else {},
        )


def row_value(text: str, item: Mapping[str, Any]) -> str | None:
    """A template's text for this row; None if it depends on the completion or does not resolve."""
    if uses_sample(text) or unresolved(text, item):
        return None
    try:
        return render(text, Sample(output_text=""), item)
    except UnscorableError:
        return None
