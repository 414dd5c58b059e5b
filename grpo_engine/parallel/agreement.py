"""Refuses ranks that start from different states, because their gradients are summed as if for one state."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_engine.contract.errors import RanksDisagreeError
from grpo_engine.parallel.ranks import Ranks

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → the integer type as which its bits are read."""


def require_agreement(facts: Mapping[str, object]) -> None:
    """Compare this rank's start with that of all others. Every rank must call it.

    Raises RanksDisagreeError on every rank, so that none waits for another one.
    """
    compare(Ranks.current().gather(dict(facts)))


def compare(facts_R: Sequence[Mapping[str, object]]) -> None:
    """Raises RanksDisagreeError with the values of each rank if a fact is not the same on all."""
    first = facts_R[0]
    different = [name for name in first if any(facts[name] != first[name] for facts in facts_R)]
    if different:
        evidence = [
            f"rank {rank}: " + ", ".join(f"{name} {facts[name]}" for name in different)
            for rank, facts in enumerate(facts_R)
        ]
        message = f"The ranks start with different values of {', '.join(different)}"
        raise RanksDisagreeError(f"{message}: {'; '.join(evidence)}", evidence=tuple(evidence))


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """Digest of each tensor's bits summed as integers, which is exact in any order and on any device.

    Tensors that are sharded over the ranks are left out.
    """
    whole = [tensor.detach() for tensor in tensors.values() if not isinstance(tensor, DTensor)]
    sums = [tensor.view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64) for tensor in whole]
    numbers = torch.stack(sums).tolist() if sums else []
    return hashlib.sha256(repr(numbers).encode()).hexdigest()[:12]
