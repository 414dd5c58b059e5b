"""What every grader is: a frozen record that scores one completion.

A grader never raises for what a model wrote: it returns a `Score` whose reward is None, with the reason. Most
kinds are a `RewardGrader`. Boundary: no I/O and no torch here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from grpo_engine.contract.records import GradeError, Input, Sample, Score
from grpo_engine.graders.errors import ErrorCode, UnscorableError
from grpo_engine.graders.feedback import bounded_feedback
from grpo_engine.graders.template import check, render, unresolved, uses_sample

Template = Annotated[str, Field(max_length=65_536), AfterValidator(check)]
"""Text with `{{item.…}}` and `{{sample.…}}`; see `template.py`."""


Execution = Literal["inline", "thread", "process"]
"""inline: pure and quick. thread: waits for a network, under time-outs of its own. process: may hang, flood
or die, so it runs in a grading process that is killed at its deadline."""


class GraderBase(Input, ABC):
    """Common part of all reward rules."""

    name: str = Field("", max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")
    """Name in metrics (`rewards/<name>/mean`); default: the type."""

    @property
    def execution(self) -> Execution:
        """Where the rule may run; see `Execution`."""
        return "inline"

    @property
    def holds_a_model(self) -> bool:
        """Whether each grading process would hold a model of its own: then one process must do."""
        return False

    def prepare(self) -> None:
        """Load what is needed before the first completion, so that none pays for it."""

    @property
    def label(self) -> str:
        return self.name or str(getattr(self, "type", "grader"))

    @abstractmethod
    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        """Score of one completion. `item` is the whole dataset row but `messages` and `tools`."""

    def unscorable(self, code: ErrorCode, message: str) -> Score:
        """A score without a reward, and the reason."""
        error = GradeError(code=code, message=message)
        return Score(reward=None, parts={self.label: None}, errors={self.label: error})

    def templates(self) -> dict[str, str]:
        """Field → its template, for the fields that have one."""
        return {}

    def unresolved(self, item: Mapping[str, Any]) -> list[str]:
        """Template paths (`item.answer`) that this row cannot resolve; empty where all do."""
        found = [path for text in self.templates().values() for path in unresolved(text, item)]
        return list(dict.fromkeys(found))

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        """Sentences on why no completion of this row could be scored; empty where one can."""
        return [f"{{{{{path}}}}} does not resolve" for path in self.unresolved(item)]


class Graded(NamedTuple):
    """What a rule found for one completion."""

    reward: float
    feedback: str = ""
    """What would improve the completion; empty if nothing is known."""


class EvaluatingGrader(GraderBase):
    """A rule that gets the reward and the feedback in one run."""

    @abstractmethod
    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        """Raises UnscorableError."""

    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        try:
            reward, feedback = self.evaluate(sample, item)
        except UnscorableError as error:
            return self.unscorable(error.code, error.message)
        if not math.isfinite(reward):
            return self.unscorable("other_error", f"the reward is {reward}, not a finite number")
        reward = float(reward)
        return Score(reward=reward, parts={self.label: reward}, feedback=bounded_feedback(feedback))


class RewardGrader(EvaluatingGrader):
    """A rule that is a function of the completion and its row."""

    @abstractmethod
    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        """The rule itself. Raises UnscorableError."""

    def feedback(self, sample: Sample, item: Mapping[str, Any], reward: float) -> str:
        """What would improve a completion with this reward; empty if nothing is known."""
        return ""

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        reward = self.reward(sample, item)
        return Graded(reward, self.feedback(sample, item, reward))


def row_value(text: str, item: Mapping[str, Any]) -> str | None:
    """What a template is for this row, None where it depends on the completion or does not resolve."""
    if uses_sample(text) or unresolved(text, item):
        return None
    try:
        return render(text, Sample(output_text=""), item)
    except UnscorableError:
        return None
