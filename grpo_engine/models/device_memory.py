"""Measures a device's free memory, and refuses models that do not fit."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.parallel.shards import own_part

GB = 1e9
BUDGET_HINT = (
    "Divide the weights among more ranks: for training with runtime.sharding fsdp, for sampling with "
    "runtime.sampler vllm and runtime.tensor_parallel."
)


def feed_forward_width(config: PreTrainedConfig) -> int:
    """Width of the widest feed-forward layer."""
    widths = (getattr(layer, "intermediate_size", None) or 4 * layer.hidden_size for layer in _layers(config))
    return max(int(max(width) if isinstance(width, list | tuple) else width) for width in widths)


def cached_heads(config: PreTrainedConfig) -> tuple[int, int]:
    """Number and size of the heads whose keys and values a cache holds; the maxima if layers differ."""
    counts, sizes = zip(*map(_cached_heads, _layers(config)), strict=True)
    return max(counts), max(sizes)


def _cached_heads(layer: PreTrainedConfig) -> tuple[int, int]:
    heads = getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads
    # `head_dim` of latent attention (DeepSeek) is only the part of a key with a position
    sizes = (getattr(layer, name, None) for name in ("qk_head_dim", "head_dim"))
    size = next(filter(None, sizes), layer.hidden_size // layer.num_attention_heads)
    return int(heads), int(size)


def _layers(config: PreTrainedConfig) -> Sequence[PreTrainedConfig]:
    """The layers' configurations; transformers refuses to read what differs between them from the whole."""
    return config.per_layer_config if getattr(config, "is_heterogeneous", False) else (config,)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that this process can still allocate; None on a CPU, whose memory all processes share."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def forget_peak(device: torch.device) -> None:
    """Reset the peak that `peak_bytes_above_now` reads."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes_above_now(device: torch.device) -> int:
    """Bytes that were allocated at the peak and are free now; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)


def place(model: Any, name: str, device: torch.device) -> None:
    """Move a model to its device. Raises DeviceMemoryError, before it moves anything, if it does not fit."""
    needed, free = weight_bytes(model), free_bytes(device)
    if free is not None and needed > free:
        raise DeviceMemoryError(
            f"the weights of {name} need {needed / GB:.3g} GB, and {device} has {free / GB:.3g} GB free",
            hint="Use a device with more free memory, bfloat16, or a smaller model.",
        )
    model.to(device)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, whole even if they are sharded; a shared one counts once."""
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers()))


def own_bytes(*models: nn.Module | None) -> int:
    """Bytes of the models' parameters and buffers on this rank; for a sharded tensor, only its share."""
    held = [each for model in models if model is not None for each in (*model.parameters(), *model.buffers())]
    return sum(own_part(each).nbytes for each in held)


def refuse_above_budget(name: str, purpose: str, num_bytes: int, budget: int | None) -> None:
    """Raise DeviceMemoryError if a rank's weights exceed the declared budget."""
    if budget is not None and num_bytes > budget:
        raise DeviceMemoryError(
            f"for {purpose}, the weights of {name} take {num_bytes:,} bytes on each rank; "
            f"runtime.weight_budget_bytes is {budget:,}",
            hint=BUDGET_HINT,
        )
