"""Data-parallel ranks: who trains which groups of a step, and how their gradients become one.

Every rank knows the whole step (its groups and each token's share of it), so it only has to train its own
part and add up. Started without torch.distributed there is one rank, and nothing here does anything.
Boundary: no start of processes, no sampling; all ranks hold the same weights and the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
import torch.distributed as dist

from grpo_engine.metrics import TrainingStats
from grpo_engine.packing import TrainingGroup

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> Self:
        """As torch.distributed was initialised; a single rank where it was not."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def share(self, groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
        """This rank's groups: longest first, each to the rank with the fewest tokens so far."""
        if self.world == 1:
            return list(groups)
        tokens = [0] * self.world
        own = []
        for group in sorted(groups, key=lambda each: -each.num_tokens):
            lightest = tokens.index(min(tokens))
            tokens[lightest] += group.num_tokens
            if lightest == self.rank:
                own.append(group)
        return own

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks."""
        if self.world == 1:
            return [value]
        found: list[T | None] = [None] * self.world
        dist.all_gather_object(found, value)
        return [each for each in found if each is not None]

    def reduce(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients over all ranks; a parameter that no rank touched keeps none."""
        if self.world == 1:
            return
        every = list(parameters)
        touched = [
            any(flags) for flags in zip(*self.gather([p.grad is not None for p in every]), strict=True)
        ]
        for parameter, needed in zip(every, touched, strict=True):
            if needed:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)


def summed(stats_R: Sequence[TrainingStats]) -> TrainingStats:
    """The ranks' statistics of one optimiser step as if one rank had trained it all."""
    total = TrainingStats()
    for stats in stats_R:
        total.tokens += stats.tokens
        total.loss += stats.loss
        total.largest_difference = max(total.largest_difference, stats.largest_difference)
        low, high = total.ratio_range
        total.ratio_range = min(low, stats.ratio_range[0]), max(high, stats.ratio_range[1])
        for name, value in stats.sums.items():
            total.sums[name] = total.sums.get(name, 0.0) + value
    return total
