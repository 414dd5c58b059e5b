"""The interface of samplers, and the random numbers that all of them use."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from grpo_engine.config.hyperparameters import LEAST_TEMPERATURE
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt

if TYPE_CHECKING:
    from grpo_engine.rollout.sampler.turns import TurnQueue


@dataclass(frozen=True, slots=True)
class Continuation:
    """A completion to continue after tool answers, in place of a new prompt."""

    prompt: int
    """Number of the completion's original prompt in the step."""
    sample: int
    """Number in that prompt's group."""
    turn: int
    """Number of earlier turns, 1 or more."""
    max_tokens: int
    """Number of tokens that may still be sampled."""

    @property
    def stream(self) -> tuple[int, int, int]:
        """(prompt, sample, turn), as in `Sampling.stream`."""
        return self.prompt, self.sample, self.turn


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int
    temperature: float = 1.0
    """Sampling temperature; below LEAST_TEMPERATURE it is greedy."""
    seed: int = 0
    step: int = 0
    first_prompt: int = 0
    """Number of the first prompt in the step; different numbers draw different tokens."""
    stop: tuple[str, ...] = ()
    """A completion ends after the first of these texts in it."""
    same_tasks: bool = False
    """Environments draw a row's task by the row alone, so that two evaluations have the same tasks."""
    continuing: tuple[Continuation, ...] = ()
    """The completion that each prompt continues, in groups of one. Empty: new prompts, numbered from
    `first_prompt`."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature < LEAST_TEMPERATURE

    def stream(self, place: int, sample: int) -> tuple[int, int, int]:
        """(prompt, sample, turn) of a completion of the prompt at `place`.

        Unique in the step, so no two completions share random numbers.
        """
        if not self.continuing:
            return self.first_prompt + place, sample, 0
        return self.continuing[place].stream

    def limit(self, place: int) -> int:
        """Maximum tokens of a completion of the prompt at `place`."""
        return self.continuing[place].max_tokens if self.continuing else self.max_tokens

    def starting_at(self, first_prompt: int) -> Sampling:
        return replace(self, first_prompt=first_prompt)

    def part(self, start: int, stop: int) -> Sampling:
        """The sampling of the prompts from `start` to `stop`, which keep their random numbers."""
        return replace(self, first_prompt=self.first_prompt + start, continuing=self.continuing[start:stop])


OnGroup = Callable[[int, Group], None]
"""Called with a group's position as soon as its last completion is finished."""


class NextTurn(NamedTuple):
    """A turn of a conversation that continues after an answer."""

    prompt: Prompt
    """All tokens before the turn, and the row of the dataset."""
    continuation: Continuation


OnTurn = Callable[[NextTurn, Completion], None]
"""Called with a turn and its completion as soon as it is finished, in the sampling thread."""


@dataclass(frozen=True, slots=True)
class GroupAssembly:
    """Collects completions, in any order, into the groups of P prompts."""

    prompts_P: Sequence[Prompt]
    group_size: int
    on_group: OnGroup | None
    _completions: dict[int, dict[int, Completion]] = field(default_factory=lambda: defaultdict(dict))
    """Completions by place, then by sample."""

    def add(self, place: int, sample: int, completion: Completion) -> None:
        """Store a completion of the prompt at `place`, unless it was added before."""
        found = self._completions[place]
        if sample in found:
            return
        found[sample] = completion
        if self.on_group is not None and len(found) == self.group_size:
            self.on_group(place, self._group(place))

    def missing(self) -> dict[int, list[int]]:
        """Position of each incomplete group → its samples that are missing."""
        samples = range(self.group_size)
        found = {
            place: [sample for sample in samples if sample not in self._completions[place]]
            for place in range(len(self.prompts_P))
        }
        return {place: missing for place, missing in found.items() if missing}

    def groups(self) -> list[Group]:
        return [self._group(place) for place in range(len(self.prompts_P))]

    def _group(self, place: int) -> Group:
        found = self._completions[place]
        return Group(self.prompts_P[place], tuple(found[sample] for sample in range(self.group_size)))


def finished_completion(
    policy: Policy, version: int, token_ids: Sequence[int], logprobs: Sequence[float], *, stopped: bool
) -> Completion:
    """A completion of sampled tokens. `stopped`: whether a stop token or string, not a limit, ended it."""
    return Completion(
        text=policy.completion_text(token_ids),
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
        policy_version=version,
    )


class Sampler(Protocol):
    matches_trainer: bool
    """Whether it computes as the trainer does, so that in float32 its log-probabilities are the trainer's."""

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups of `group_size` completions, in the order of the prompts."""
        ...

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        """Sample every turn, until there will be no further one. `sampling.max_tokens` bounds all of them."""
        ...

    def load_policy(self, version: int) -> None:
        """Sample from the policy's current weights from now on; completions carry `version`."""
        ...

    def rest(self) -> dict[str, float]:
        """Release the device until the next `load_policy`, because the trainer needs it; returns metrics."""
        ...


class AroundSampler:
    """A sampler around another one; subclasses implement `generate` for whole completions."""

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner
        self.matches_trainer = inner.matches_trainer
        self.version = 0
        """Version of the policy that was loaded last."""

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        self.inner.sample_turns(turns, sampling, on_turn)

    def load_policy(self, version: int) -> None:
        self.inner.load_policy(version)
        self.version = version

    def rest(self) -> dict[str, float]:
        return self.inner.rest()


class ContextSampler(AroundSampler):
    """Samples each time inside the block of a new context."""

    def __init__(self, inner: Sampler, context: Callable[[], AbstractContextManager[object]]) -> None:
        super().__init__(inner)
        self.context = context

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        with self.context():
            return self.inner.generate(prompts_P, group_size, sampling, on_group)


def unwrapped(sampler: Sampler) -> Sampler:
    """The innermost sampler."""
    while isinstance(sampler, AroundSampler):
        sampler = sampler.inner
    return sampler


def sampler_name(sampler: Sampler) -> str:
    """Kind of the innermost sampler: `torch`, `vllm`, or `remote` for one on other devices."""
    return type(unwrapped(sampler)).__name__.removesuffix("Sampler").lower()


def uniforms(seed: int, step: int, prompt: int, sample: int, count: int, *, turn: int = 0) -> np.ndarray:
    """[count] numbers in [0, 1), one for each position of one turn of one completion.

    They depend only on (seed, step, prompt, sample, turn, position), so batching, compaction and resuming
    change nothing, and there is no generator state to save.
    """
    name = f"{seed}/{step}/{prompt}/{sample}" + (f"/{turn}" if turn else "")
    return named_generator(name).random(count, dtype=np.float32)


def named_generator(name: str) -> np.random.Generator:
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
