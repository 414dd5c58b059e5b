"""Gathers, fills, saves and receives tensors that may be sharded over the ranks."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from grpo_engine.parallel.ranks import Ranks


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor; every rank must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """This rank's share of a sharded tensor; otherwise the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded; needs no communication."""
    target.copy_(share_of(target, value))


def share_of(like: Tensor, value: Any) -> Tensor:
    """This rank's share of a whole tensor, on the device and with the sharding of `like`.

    `value`: a tensor, or one in a safetensors file (`safe_open(…).get_slice`): only the share is read.
    """
    if not isinstance(like, DTensor):
        return value[...].to(like.device, copy=True)
    mesh, placements = like.device_mesh, like.placements
    shape, offset = compute_local_shape_and_global_offset(like.shape, mesh, placements)
    own = value[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
    return DTensor.from_local(
        own.to(like.device, copy=True), mesh, placements, shape=like.shape, stride=like.stride()
    )


def from_first(tensor: Tensor, device: torch.device) -> Tensor:
    """The first rank's tensor on every rank's device; the others' gives only shape and dtype."""
    ranks = Ranks.current()
    if ranks.is_first:
        value = tensor.detach().to(device).contiguous()
    else:
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if ranks.world > 1:
        dist.broadcast(value, src=0)
    return value


DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Names of number formats in safetensors files."""


def save_gathered(tensors: Mapping[str, Tensor], path: Path | None) -> None:
    """Write a safetensors file of whole tensors, of which one at a time is in memory; every rank must call.

    `path`: None on all ranks but the first. safetensors itself needs all tensors at once.
    """
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with nullcontext() if path is None else path.open("wb") as file:
        if file is not None:
            file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            whole = gathered(tensor)
            if file is not None:
                file.write(whole.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


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
