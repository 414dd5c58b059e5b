"""A step's groups: sampled, graded while others are still sampled, replaced where they teach nothing.

Boundary: no gradients. What a tool-using job needs is inside its sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.records import Score
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.objective.advantages import has_signal
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.objective.types import GradedGroup, Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.scoring import Decode, group_rewards, punished, refuse_broken_grader, sample_of


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step has to train on, and what it threw away to get there."""

    groups: list[GradedGroup]
    discarded: list[GradedGroup]
    """Groups without signal that fresh prompts replaced."""

    @property
    def everything(self) -> list[GradedGroup]:
        return [*self.groups, *self.discarded]


def sampling_of(settings: ReinforcementHyperparameters, seed: int, step: int) -> Sampling:
    """How a job's completions of a step are drawn."""
    return Sampling(
        max_tokens=settings.max_completion_tokens,
        temperature=settings.temperature,
        seed=seed,
        step=step,
        stop=settings.stop,
    )


class Collector:
    def __init__(
        self,
        sampler: Sampler,
        grading: Grading,
        source: PromptSource,
        hyperparameters: ReinforcementHyperparameters,
        decode: Decode,
    ) -> None:
        self.sampler = sampler
        self.grading = grading
        self.source = source
        self.hyperparameters = hyperparameters
        self.decode = decode

    def collect(self, step: int, sampling: Sampling, timer: PhaseTimer) -> Collected:
        """The groups of a step. Raises GraderError where too many completions could not be scored."""
        wanted = self.hyperparameters.prompts_per_step
        rounds = self.hyperparameters.dynamic_sampling
        graded = self.graded(self.source.batch(step), sampling, timer)
        if rounds:
            graded, discarded = self._split(graded)
            used = {group.group.prompt.row for group in [*graded, *discarded]}
            for attempt in range(1, rounds + 1):
                fresh = self.source.fresh(step, attempt, wanted - len(graded), used)
                if not fresh:
                    break
                offset = sampling.starting_at(len(used))
                found, without = self._split(self.graded(fresh, offset, timer))
                graded, discarded = graded + found, discarded + without
                used |= {prompt.row for prompt in fresh}
            missing = max(0, wanted - len(graded))
            graded, discarded = graded + discarded[:missing], discarded[missing:]
        else:
            discarded = []
        collected = Collected(graded, discarded)
        refuse_broken_grader(collected.everything, self.hyperparameters.max_grader_error_rate)
        return collected

    def graded(self, prompts_P: Sequence[Prompt], sampling: Sampling, timer: PhaseTimer) -> list[GradedGroup]:
        """Groups with their scores; each rank samples and grades its part, and learns of the others'.

        A completion's name, and with it its random numbers, does not depend on the number of ranks.
        """
        ranks = Ranks.current()
        first, own = ranks.part(prompts_P)
        graded = self._graded(own, sampling.starting_at(sampling.first_prompt + first), timer)
        with timer.measure("score"):
            return ranks.joined(graded)

    def _graded(
        self, prompts_P: Sequence[Prompt], sampling: Sampling, timer: PhaseTimer
    ) -> list[GradedGroup]:
        """A finished group is graded while the others are still sampled."""
        waiting: dict[int, list[Future[Score]]] = {}

        def submit(position: int, group: Group) -> None:
            item = group.prompt.item
            waiting[position] = [self.grading.submit(sample_of(c), item) for c in group.completions]

        with timer.measure("sample"):
            groups = self.sampler.generate(prompts_P, self.hyperparameters.group_size, sampling, submit)
        with timer.measure("score"):
            return [self._scored(group, waiting[position]) for position, group in enumerate(groups)]

    def _scored(self, group: Group, waiting: Sequence[Future[Score]]) -> GradedGroup:
        scores = tuple(
            punished(future.result(), completion, self.hyperparameters)
            for completion, future in zip(group.completions, waiting, strict=True)
        )
        return GradedGroup(group, scores)

    def _split(self, graded: Sequence[GradedGroup]) -> tuple[list[GradedGroup], list[GradedGroup]]:
        """With signal, and without."""
        signal = [
            has_signal(group_rewards(each, self.hyperparameters, self.decode), self.hyperparameters.advantage)
            for each in graded
        ]
        kept = [each for each, has in zip(graded, signal, strict=True) if has]
        return kept, [each for each, has in zip(graded, signal, strict=True) if not has]
