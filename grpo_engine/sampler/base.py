"""What a sampler is, and the randomness all samplers share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from grpo_engine.types import Group, Prompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    seed: int = 0
    step: int = 0


class Sampler(Protocol):
    def generate(self, prompts_P: Sequence[Prompt], group_size: int, sampling: Sampling) -> list[Group]:
        """P prompts → P groups of `group_size` completions, in the order of the prompts."""
        ...

    def load_policy(self, version: int) -> None:
        """From now on sample from the policy as it is; completions carry `version`."""
        ...


def uniforms(seed: int, step: int, prompt: int, sample: int, count: int) -> np.ndarray:
    """[count] numbers in [0, 1): one for each position of one completion.

    They depend only on (seed, step, prompt, sample, position), so batching, compaction and resuming change
    nothing, and there is no hidden generator state to save.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{prompt}/{sample}".encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    return generator.random(count, dtype=np.float32)
