"""Attempts at rows with the library in the prompt: made, graded and compared.

Boundary: groups and their metrics. An attempt that the model failed to make is unscorable, like one that a
grader could not score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grpo_engine.config.training_free import TrainingFreeHyperparameters
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.objective.advantages import GroupRewards, advantages
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt, ScoredGroup
from grpo_engine.rollout.scoring import PendingScores
from grpo_engine.training_free.library import Experience, Library
from grpo_engine.training_free.model_client import AnswerSettings, ModelClient
from grpo_engine.training_free.prompts import Row, task_text, with_experiences


def with_advantages(groups_P: Sequence[GradedGroup]) -> list[ScoredGroup]:
    """The groups with their advantages (`group_std`); those without signal get exactly 0."""
    rewards = [GroupRewards(tuple(score.reward for score in group.scores)) for group in groups_P]
    return [
        ScoredGroup(graded.group, graded.scores, found.values, found.has_signal)
        for graded, found in zip(groups_P, advantages(rewards), strict=True)
    ]


class Attempts:
    """Makes attempts with one model."""

    def __init__(self, client: ModelClient, settings: TrainingFreeHyperparameters) -> None:
        self.client = client
        self.settings = settings

    def prompted(self, row: Row, library: Library) -> tuple[Row, int]:
        """The row with as much of the library as fits, and the number of lessons left out.

        Lessons that were useful longest ago are left out first.
        """
        by_use = library.by_use()
        for count in range(len(by_use), -1, -1):
            kept = {each.id for each in by_use[:count]}
            shown: list[Experience] = [each for each in library.experiences if each.id in kept]
            prompted = with_experiences(row, shown, self.settings.template)
            if count == 0 or self.client.fits(prompted, self.settings.max_completion_tokens):
                return prompted, len(by_use) - count
        return row, len(by_use)

    def graded(
        self,
        prompts_P: Sequence[Prompt],
        rows_P: Sequence[Row],
        count: int,
        asking: AnswerSettings,
        grading: Grading,
        timer: PhaseTimer,
    ) -> list[GradedGroup]:
        """P groups of `count` attempts with their scores; `rows_P` are sent unchanged.

        A finished group is graded while others are being made.
        """
        pending = PendingScores(grading)

        def submit(place: int, completions: tuple[Completion, ...]) -> None:
            pending.submit(place, Group(prompts_P[place], completions))

        with timer.measure("sample"):
            made = self.client.answer(rows_P, count, asking, submit)
        groups = [
            Group(replace(prompt, text=task_text(row)), completions)
            for prompt, row, completions in zip(prompts_P, rows_P, made, strict=True)
        ]
        with timer.measure("score"):
            return pending.graded(groups)


def unanswered(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Number of attempts that the model did not make."""
    failures = [each.failure for group in scored for each in group.group.completions]
    return {"completions/unanswered": float(sum(failure is not None for failure in failures))}
