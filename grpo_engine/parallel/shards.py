"""Tensors of which each rank may hold only a share: all of one, and one filled from all of it.

Boundary: no start of ranks, no wrapping of models (`distributed.py`). A plain tensor stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded; each rank takes its share without asking others."""
    target.copy_(share_of(target, value))


def share_of(like: Tensor, value: Tensor) -> Tensor:
    """A whole tensor as this rank holds it, on the device and sharded as `like` is."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
