"""Makes, grades and compares attempts at rows with the library in the prompt.

If the model fails to make an attempt, the attempt is unscorable, as if a grader could not score it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_engine.config.training_free import TrainingFreeHyperparameters
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.objective.advantages import GroupRewards, advantages
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt, ScoredGroup
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.scoring import PendingScores, scored_groups
from grpo_engine.training_free.library import Library, number_of
from grpo_engine.training_free.model_client import ModelClient
from grpo_engine.training_free.prompts import Row, task_text, with_experiences


def with_advantages(groups_P: Sequence[GradedGroup]) -> list[ScoredGroup]:
    """The groups with their advantages (`group_std`); those without signal get exactly 0."""
    rewards = [GroupRewards(tuple(score.reward for score in group.scores)) for group in groups_P]
    return scored_groups(groups_P, advantages(rewards))


@dataclass(frozen=True, slots=True)
class Attempts:
    client: ModelClient
    settings: TrainingFreeHyperparameters

    def prompted(self, row: Row, library: Library) -> tuple[Row, int]:
        """The row with as much of the library as fits, and the number of lessons left out.

        The lessons whose last use is longest ago are left out first.
        """
        kept = library.by_use()
        while True:
            prompted = with_experiences(row, sorted(kept, key=number_of), self.settings.template)
            if not kept or self.client.fits(prompted, self.settings.max_completion_tokens):
                return prompted, len(library.experiences) - len(kept)
            kept.pop()

    def graded(
        self,
        prompts_P: Sequence[Prompt],
        rows_P: Sequence[Row],
        count: int,
        sampling: Sampling,
        version: int,
        grading: Grading,
        timer: PhaseTimer,
    ) -> list[GradedGroup]:
        """P groups of `count` attempts with their scores; `rows_P` are sent unchanged.

        A finished group is graded while others are being made. `version`: the library's.
        """
        pending = PendingScores(grading)

        def submit(place: int, completions: tuple[Completion, ...]) -> None:
            pending.submit(place, Group(prompts_P[place], completions))

        with timer.measure("sample"):
            made = self.client.answer(rows_P, count, sampling, version=version, on_row=submit)
        groups = [
            Group(replace(prompt, text=task_text(row)), completions)
            for prompt, row, completions in zip(prompts_P, rows_P, made, strict=True)
        ]
        with timer.measure("score"):
            return pending.graded(groups)


def unanswered(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Metric: the number of attempts that the model did not make."""
    failures = [each.failure for group in scored for each in group.group.completions]
    return {"completions/unanswered": float(sum(failure is not None for failure in failures))}
