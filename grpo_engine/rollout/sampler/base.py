"""What a sampler is, and the randomness all samplers share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from grpo_engine.objective.types import Group, Prompt


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt that is a completion in its midst: the model spoke, a tool answered, the model goes on."""

    prompt: int
    """Number in the step of the prompt that it began with."""
    sample: int
    """Number in that prompt's group."""
    turn: int
    """How often the model has spoken before; 1 or more."""
    max_tokens: int
    """Tokens that are left to it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    seed: int = 0
    step: int = 0
    first_prompt: int = 0
    """Number in the step of the first prompt: another number draws other tokens."""
    stop: tuple[str, ...] = ()
    """A completion ends after the first of these."""
    continuing: tuple[Continuation, ...] = ()
    """What each prompt goes on with, in groups of one; empty: prompts begin, and number `first_prompt` on."""

    def stream(self, place: int, sample: int) -> tuple[int, int, int]:
        """(prompt, sample, turn): the name in the step of a completion of the prompt at `place`.

        No two completions of a step have the same, so their random numbers differ.
        """
        if not self.continuing:
            return self.first_prompt + place, sample, 0
        goes_on = self.continuing[place]
        return goes_on.prompt, goes_on.sample, goes_on.turn

    def limit(self, place: int) -> int:
        """Tokens that a completion of the prompt at `place` may have."""
        return self.continuing[place].max_tokens if self.continuing else self.max_tokens

    def starting_at(self, first_prompt: int) -> Sampling:
        """The same for further prompts of the step."""
        return replace(self, first_prompt=first_prompt)


OnGroup = Callable[[int, Group], None]
"""Called with a group's position as soon as its last completion has ended."""


class Sampler(Protocol):
    shares_weights: bool
    """The sampled policy is the trained one, with the same numerics: nothing to correct."""

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups of `group_size` completions, in the order of the prompts."""
        ...

    def load_policy(self, version: int) -> None:
        """From now on sample from the policy as it is; completions carry `version`."""
        ...

    def rest(self) -> None:
        """Nothing is sampled until the next `load_policy`: the device is the trainer's."""
        ...


class AroundSampler:
    """What a sampler around another one hands on; subclasses give `generate`."""

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner
        self.shares_weights = inner.shares_weights

    def load_policy(self, version: int) -> None:
        self.inner.load_policy(version)

    def rest(self) -> None:
        self.inner.rest()


def uniforms(seed: int, step: int, prompt: int, sample: int, count: int, *, turn: int = 0) -> np.ndarray:
    """[count] numbers in [0, 1): one for each position of one turn of one completion.

    They depend only on (seed, step, prompt, sample, turn, position), so batching, compaction and resuming
    change nothing, and there is no hidden generator state to save.
    """
    name = f"{seed}/{step}/{prompt}/{sample}" + (f"/{turn}" if turn else "")
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    return generator.random(count, dtype=np.float32)
