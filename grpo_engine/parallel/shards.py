"""Gathers and fills tensors that may be sharded over the ranks; plain tensors stay unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
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


def sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    """The layers, and the root, that gather their weights; none if the model is not sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gathered_weights(model: torch.nn.Module) -> Iterator[None]:
    """Inside, every rank holds all weights and computes independently; all ranks must enter."""
    modules = sharded_modules(model)
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(module is not model, recurse=False)
