"""Data-parallel ranks: divide a step's prompts and groups, and combine the results.

Every rank has the whole step (its groups and each token's weight), trains its own part and sums the
gradients. All ranks make the same steps. Without torch.distributed there is one rank, and nothing here has an
effect.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import PackedBatch

T = TypeVar("T")
BUCKET_BYTES = 2**26
"""Bytes of gradients to sum in one message; between hosts, each message costs a round trip."""


@dataclass(frozen=True, slots=True)
class Ranks:
    rank: int = 0
    world: int = 1
    group: dist.ProcessGroup | None = None
    """Process group that carries the messages; None: the default group."""

    @classmethod
    def current(cls) -> Self:
        """The ranks of torch.distributed, or a single one if it is not initialised."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def with_own_messages(self) -> Self:
        """The same ranks for a second thread, whose messages do not mix with the first one's.

        Every rank must call it.
        """
        return self if self.world == 1 else replace(self, group=dist.new_group(backend="gloo"))

    @property
    def is_first(self) -> bool:
        """Whether this rank writes events and checkpoints."""
        return self.rank == 0

    def part(self, values: Sequence[T]) -> tuple[int, Sequence[T]]:
        """Position of this rank's first value, and its contiguous part of the values."""
        start, stop = (len(values) * rank // self.world for rank in (self.rank, self.rank + 1))
        return start, values[start:stop]

    def share(self, groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
        """This rank's groups. Longest first, each group goes to the rank with the fewest tokens so far."""
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
        dist.all_gather_object(found, value, group=self.group)
        return [each for each in found if each is not None]

    def wait(self) -> None:
        """Return when every rank has called this."""
        self.gather(True)

    def joined(self, parts: Sequence[T]) -> list[T]:
        return [each for part in self.gather(parts) for each in part]

    def passes(
        self, groups: Sequence[TrainingGroup], token_budget: int, model: torch.nn.Module, device: torch.device
    ) -> tuple[list[PackedBatch], list[PackedBatch]]:
        """This rank's micro-batches of the groups, and idle ones without effect.

        Idle ones exist only with sharded weights, where all ranks must run the same number of passes.
        """
        own = list(pack(self.share(groups), token_budget, device))
        is_sharded = self.world > 1 and isinstance(model, FSDPModule)
        missing = max(self.gather(len(own))) - len(own) if is_sharded else 0
        return own, [next(pack([idle_group(number)], 1, device)) for number in range(missing)]

    def reduce(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients over all ranks. A parameter without a gradient on every rank keeps none.

        Gradients of sharded parameters are already sums.
        """
        every = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
        if self.world == 1 or not every:
            return
        touched = [
            any(flags) for flags in zip(*self.gather([p.grad is not None for p in every]), strict=True)
        ]
        gradients = []
        for parameter, needed in zip(every, touched, strict=True):
            if needed:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for together in _buckets(gradients):
            _sum_together(together)


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors in order, as many of one dtype as fit in BUCKET_BYTES at a time."""
    bucket: list[torch.Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or num_bytes + tensor.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(tensor)
        num_bytes += tensor.nbytes
    if bucket:
        yield bucket


def _sum_together(tensors: Sequence[torch.Tensor]) -> None:
    """Replace the tensors with their sums over all ranks, in one message."""
    joined = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def idle_group(number: int) -> TrainingGroup:
    """A group of weight 0, for a rank whose share of the weights others still need."""
    return TrainingGroup((0,), (TrainingSequence((0,), (0.0,), (0.0,), weight=0.0, index=-1 - number),))
