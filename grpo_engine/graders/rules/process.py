"""`process`: a reward for every reasoning step of a completion, for process supervision."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from grpo_engine.contract.records import Explanation, Sample, Score, StepScore, is_reward
from grpo_engine.graders.base import Execution, GraderBase
from grpo_engine.graders.explanations import explanation, shown
from grpo_engine.graders.feedback import bounded_feedback, excerpt
from grpo_engine.graders.printed import bounded
from grpo_engine.graders.registry import LeafGrader
from grpo_engine.graders.rules.endpoint import EnvironmentReward
from grpo_engine.graders.rules.length import Length
from grpo_engine.graders.samples import make_sample
from grpo_engine.graders.steps import Step, check_splitter, split

_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda rewards: math.fsum(rewards) / len(rewards),
    "last": lambda rewards: rewards[-1],
    "min": min,
    "product": math.prod,
}


class Process(GraderBase):
    """Rewards of the steps from the inner grader, which sees each step as `sample.output_text`.

    A completion without steps, with more than `max_steps`, or with a step that the inner grader cannot score
    is unscorable. Rollouts and grader runs show the steps with their rewards.
    """

    type: Literal["process"]
    splitter: Annotated[str, AfterValidator(check_splitter)] = "lines"
    """lines; paragraphs (separated by empty lines); steps (`Step 1:`); or an RE2 pattern of the separator."""
    grader: Annotated[LeafGrader, Field(discriminator="type")]
    """The grader of each step; it sees the step as `sample.output_text`."""
    aggregate: Literal["mean", "last", "min", "product"] = "mean"
    """How the steps' rewards become the completion's."""
    max_steps: int = Field(64, ge=1, le=1024)
    """Maximum steps; a completion with more is unscorable."""

    @field_validator("grader")
    @classmethod
    def _scores_a_step(cls, grader: LeafGrader) -> LeafGrader:
        if isinstance(grader, EnvironmentReward):
            raise ValueError("an environment rewards whole completions, not their steps")
        if isinstance(grader, Length) and grader.unit == "tokens":
            raise ValueError("the number of a step's tokens is unknown: use the unit characters")
        return grader

    @property
    def execution(self) -> Execution:
        """Where the inner grader runs, but never inline, because a thousand steps may take minutes."""
        return "process" if self.grader.execution == "inline" else self.grader.execution

    def prepare(self) -> None:
        self.grader.prepare()

    @property
    def holds_a_model(self) -> bool:
        return self.grader.holds_a_model

    def templates(self) -> dict[str, str]:
        return self.grader.templates()

    def problems(self, item: Mapping[str, Any]) -> list[str]:
        return self.grader.problems(item)

    def grade(self, sample: Sample, item: Mapping[str, Any]) -> Score:
        try:
            steps = split(sample.output_text, self.splitter, self.max_steps)
        except ValueError as error:
            return self.unscorable("other_error", str(error))
        scores: list[Score] = []
        for step in steps:
            step_sample = make_sample(
                step.text, finish_reason=sample.finish_reason, tools=sample.output_tools
            )
            scores.append(self.grader.grade(step_sample, item))
            if scores[-1].reward is None:
                break
        printed = bounded("\n".join(text for score in scores for text in score.printed.values()))
        total = self._total(steps, scores)
        return total.model_copy(update={"printed": {self.label: printed}}) if printed else total

    def _total(self, steps: Sequence[Step], scores: Sequence[Score]) -> Score:
        """The completion's score. `scores` end with the first step that has no reward."""
        if scores[-1].reward is None:
            reason = next(iter(scores[-1].errors.values()))
            return self.unscorable(reason.code, f"step {len(scores)} of {len(steps)}: {reason.message}")
        rewards = [score.reward for score in scores if score.reward is not None]
        total = float(_AGGREGATES[self.aggregate](rewards))
        if not is_reward(total):
            return self.unscorable("other_error", f"the {self.aggregate} of the steps' rewards is {total}")
        return Score(
            reward=total,
            parts={self.label: total},
            feedback=_feedback(steps, scores, rewards),
            steps=tuple(StepScore(end=s.end, reward=r) for s, r in zip(steps, rewards, strict=True)),
            explanations={self.label: _explained(steps, scores)},
        )


def _explained(steps: Sequence[Step], scores: Sequence[Score]) -> tuple[Explanation, ...]:
    """Each step's text and reward; if there are many, those with the lowest rewards."""
    return shown(
        [
            explanation(
                f"step {number} of {len(steps)}",
                passed=score.reward is not None and score.reward >= 1.0,
                score=score.reward,
                got=step.text,
                detail=score.feedback,
            )
            for number, (step, score) in enumerate(zip(steps, scores, strict=True), 1)
        ]
    )


def _feedback(steps: Sequence[Step], scores: Sequence[Score], rewards: Sequence[float]) -> str:
    """Feedback on the first step with the lowest reward."""
    lowest = min(range(len(rewards)), key=rewards.__getitem__)
    if rewards[lowest] >= 1.0:
        return ""
    reason = scores[lowest].feedback or excerpt(steps[lowest].text)
    return bounded_feedback(
        f"step {lowest + 1} of {len(steps)} has the lowest reward, {rewards[lowest]:g}: {reason}"
    )
