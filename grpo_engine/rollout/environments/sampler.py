"""Rollouts in a job's environments as a sampler. It wraps any sampler and is one itself.

Environments of different types share one sampling, so none waits for those of another type.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, Self

from grpo_engine.config.environments import Environment
from grpo_engine.contract.errors import DatasetError, EnvironmentUnreachableError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import (
    AroundSampler,
    GroupAssembly,
    NextTurn,
    OnGroup,
    OnTurn,
    Sampler,
    Sampling,
)
from grpo_engine.rollout.sampler.turns import TurnQueue

FAILED_BATCHES = 3
"""Batches in a row in which every rollout fails, after which the job fails. Those of a step with another
batch that did not fail are left out."""

MAX_SHOWN_CHARACTERS = 2000
"""Maximum characters of an action and of an observation in the record."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rollouts of one `generate` in environments of one type."""

    prompts: list[Prompt]
    """All prompts; those of these rollouts get what their groups share."""
    places: Sequence[int]
    """Positions of their prompts."""
    groups: GroupAssembly
    sampling: Sampling
    queue: TurnQueue
    version: int
    """Version of the policy."""

    def task_seed(self, prompt: Prompt, number: int) -> int:
        """Seed of a group's task: new in each step, except in evaluations, which compare the same tasks."""
        step = "" if self.sampling.same_tasks else f"/{self.sampling.step}/{number}"
        name = f"environment/{self.sampling.seed}/{prompt.row}{step}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) & 0x7FFFFFFF


class Environments(Protocol):
    """The environments of one type."""

    environments: Mapping[str, Any]

    def around(self, policy: Policy) -> Self:
        """The same for another policy."""
        ...

    def open(self, rollouts: Rollouts) -> AbstractContextManager[OnTurn]:
        """Start the rollouts; yields the function to call with each sampled turn."""
        ...


class EnvironmentSampler(AroundSampler):
    """Samples in environments. Raises EnvironmentUnreachableError if all rollouts fail repeatedly."""

    def __init__(self, inner: Sampler, *types: Environments) -> None:
        super().__init__(inner)
        self.types = types
        self.failed_batches = 0
        """Batches in a row in which every rollout failed, without those of `reached_step`."""
        self.reached_step: int | None = None
        """The newest step with a rollout that did not fail."""

    def around(self, inner: Sampler, policy: Policy) -> Self:
        """The same for another policy."""
        return type(self)(inner, *(each.around(policy) for each in self.types))

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; environments answer while other rollouts are sampled."""
        prompts = list(prompts_P)
        names = [str(prompt.item["environment"]) for prompt in prompts]
        assembly = GroupAssembly(prompts, group_size, on_group)
        queue = TurnQueue(most=len(prompts) * group_size)
        take: dict[str, OnTurn] = {}

        def on_turn(turn: NextTurn, completion: Completion) -> None:
            take[str(turn.prompt.item["environment"])](turn, completion)

        with ExitStack() as stack:
            for each in self.types:
                places = [place for place, name in enumerate(names) if name in each.environments]
                if places:
                    rollouts = Rollouts(prompts, places, assembly, sampling, queue, self.version)
                    take |= dict.fromkeys(each.environments, stack.enter_context(each.open(rollouts)))
            self.inner.sample_turns(queue, sampling, on_turn)
        groups = assembly.groups()
        self._count_failures(groups, sampling.step)
        return groups

    def _count_failures(self, groups: Sequence[Group], step: int) -> None:
        found = [each.episode for group in groups for each in group.completions if each.episode]
        if not found or not all(each.failure for each in found):
            self.failed_batches, self.reached_step = 0, step
        elif step != self.reached_step:  # a step's later batches replace a few groups, so they may be small
            self.failed_batches += 1
        if self.failed_batches >= FAILED_BATCHES:
            message = f"all {len(found)} sessions failed, in {FAILED_BATCHES} batches in a row"
            raise EnvironmentUnreachableError(message, evidence=_first_failures(groups)[:3])


def _first_failures(groups: Sequence[Group]) -> tuple[str, ...]:
    """Each different failure with the first row, counted from 1, and the newest turn in it, if any."""
    found: dict[tuple[str, str], str] = {}
    for group in groups:
        for each in group.completions:
            if each.episode and each.episode.failure:
                turn = f", turn {each.turns}" if each.token_ids else ""
                place = f"row {group.prompt.row + 1}{turn}"
                found.setdefault((each.episode.environment, each.episode.failure), place)
    return tuple(f"{name}, {place}: {failure}" for (name, failure), place in found.items())


def refuse_unknown_environments(prompts: Sequence[Prompt], environments: Mapping[str, Environment]) -> None:
    """Raise DatasetError for a row whose `environment` or `reset` cannot be used."""
    for prompt in prompts if environments else ():
        name, reset = prompt.item.get("environment"), prompt.item.get("reset")
        if name not in environments:
            message = f"row {prompt.row + 1}: environment is {name!r}, not one of {', '.join(environments)}"
            raise DatasetError(message)
        if not (reset is None or isinstance(reset, dict)):
            raise DatasetError(f"row {prompt.row + 1}: reset must be an object")
