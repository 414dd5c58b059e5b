"""Gathers and fills tensors that may be sharded over the ranks; plain tensors stay unchanged."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor; every rank must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded; needs no communication."""
    target.copy_(share_of(target, value))


def share_of(like: Tensor, value: Tensor) -> Tensor:
    """This rank's share of a whole tensor, on the device and with the sharding of `like`."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
