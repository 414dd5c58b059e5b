"""Gathers, fills, saves, loads and receives tensors that may be sharded over the ranks."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, TensorStorageMetadata, load
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from grpo_engine.parallel.ranks import Ranks


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor; every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """This rank's share of a sharded tensor; otherwise the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded; needs no communication."""
    if isinstance(target, DTensor):
        mesh, placements = target.device_mesh, target.placements
        shape, offset = compute_local_shape_and_global_offset(target.shape, mesh, placements)
        value = value[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
    own_part(target).copy_(value)


def from_first(tensor: Tensor, device: torch.device) -> Tensor:
    """The first rank's tensor on every rank's device. Others pass one of the same shape and dtype."""
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


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write a safetensors file with only one tensor at a time in the CPU's memory; the safetensors library
    would need all of them."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def save_gathered(tensors: Mapping[str, Tensor], path: Path | None) -> None:
    """Write whole tensors; every rank must call it. `path`: None on all ranks but the first."""
    whole = {}
    for name, tensor in tensors.items():
        found = gathered(tensor)
        if path is not None:
            whole[name] = found.detach().cpu()
    if path is not None:
        save_tensors(whole, path)


def save_shard(tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """Write this rank's share of the tensors; needs no communication. The first rank adds those not sharded.

    The header says where the shares begin, as torch's `HuggingFaceStorageReader` reads it.
    """
    ranks = Ranks.current()
    own: dict[str, Tensor] = {}
    offsets: dict[str, dict[str, list[int]]] = {}
    for name, tensor in tensors.items():
        part, offset = own_part(tensor), [0] * tensor.dim()
        if isinstance(tensor, DTensor):
            mesh, placements = tensor.device_mesh, tensor.placements
            offset = list(compute_local_shape_and_global_offset(tensor.shape, mesh, placements)[1])
        elif not ranks.is_first:
            continue
        if part.numel():
            own[name], offsets[name] = part, {"saved_offsets": offset}
    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{ranks.rank:05d}-of-{ranks.world:05d}.safetensors"
    save_tensors(own, path, {"DCP_SHARDING_INFO": json.dumps(offsets)})
    return path


def load_shards(make: Callable[[dict[str, torch.dtype]], dict[str, Tensor]], folder: Path) -> None:
    """Read this rank's share of the tensors in a folder's safetensors files: any shards, or whole tensors.

    `make`: gets the names and number formats of the tensors and returns the tensors to fill.
    """
    reader = HuggingFaceStorageReader(str(folder))
    found = reader.read_metadata().state_dict_metadata.items()
    targets = make({n: each.properties.dtype for n, each in found if isinstance(each, TensorStorageMetadata)})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # ranks read independently
        load(targets, storage_reader=reader, no_dist=True)


def sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    """The layers, and the root, that gather their weights; none if the model is not sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gathered_weights(model: torch.nn.Module) -> Iterator[None]:
    """Inside the block, every rank holds all weights and computes independently; all ranks must enter."""
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
