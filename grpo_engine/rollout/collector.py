"""Collects a step's groups: samples, grades, and replaces groups without signal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.objective.advantages import has_signal
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.objective.types import GradedGroup, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.scoring import (
    Decode,
    group_rewards,
    punished,
    refuse_broken_grader,
    sample_and_grade,
)


@dataclass(frozen=True, slots=True)
class StepGroups:
    """Groups that a step trains on, and groups that it discarded."""

    groups: list[GradedGroup]
    discarded: list[GradedGroup]
    """Groups without signal, replaced by fresh prompts."""


def sampling_of(settings: ReinforcementHyperparameters, seed: int, step: int) -> Sampling:
    return Sampling(
        max_tokens=settings.max_completion_tokens,
        temperature=settings.temperature,
        seed=seed,
        step=step,
        stop=settings.stop,
    )


@dataclass(frozen=True, slots=True)
class Collector:
    sampler: Sampler
    grading: Grading
    source: PromptSource
    hyperparameters: ReinforcementHyperparameters
    decode: Decode
    ranks: Ranks = field(default_factory=Ranks.current)

    def collect(self, step: int, sampling: Sampling, timer: PhaseTimer) -> StepGroups:
        """The groups of a step. Raises GraderError if too many completions could not be scored."""
        settings = self.hyperparameters
        groups = self.graded(self.source.batch(step), sampling, timer)
        discarded: list[GradedGroup] = []
        if settings.dynamic_sampling:
            groups, discarded = self._replaced(step, groups, sampling, timer)
        refuse_broken_grader([*groups, *discarded], settings.max_grader_error_rate)
        return StepGroups(groups, discarded)

    def _replaced(
        self, step: int, graded: Sequence[GradedGroup], sampling: Sampling, timer: PhaseTimer
    ) -> tuple[list[GradedGroup], list[GradedGroup]]:
        """Replace groups without signal with fresh prompts (DAPO); returns the step's groups and the rest."""
        wanted = self.hyperparameters.prompts_per_step
        groups, without = self._split(graded)
        used = {group.group.prompt.row for group in graded}
        for attempt in range(1, self.hyperparameters.dynamic_sampling + 1):
            fresh = self.source.fresh(step, attempt, wanted - len(groups), used)
            if not fresh:
                break
            # not len(used): a step may have a row twice, and each group needs a number of its own
            first = len(groups) + len(without)
            found, useless = self._split(self.graded(fresh, sampling.starting_at(first), timer))
            groups, without = groups + found, without + useless
            used |= {prompt.row for prompt in fresh}
        missing = max(0, wanted - len(groups))
        return groups + without[:missing], without[missing:]

    def graded(self, prompts_P: Sequence[Prompt], sampling: Sampling, timer: PhaseTimer) -> list[GradedGroup]:
        """Groups with their scores, overlong ones punished."""
        size = self.hyperparameters.group_size
        graded = sample_and_grade(
            self.sampler, self.grading, prompts_P, size, sampling, timer, ranks=self.ranks
        )
        return [punished(each, self.hyperparameters) for each in graded]

    def _split(self, graded: Sequence[GradedGroup]) -> tuple[list[GradedGroup], list[GradedGroup]]:
        settings = self.hyperparameters
        kept: list[GradedGroup] = []
        rest: list[GradedGroup] = []
        for each in graded:
            rewards = group_rewards(each, settings, self.decode)
            (kept if has_signal(rewards, settings.advantage) else rest).append(each)
        return kept, rest
