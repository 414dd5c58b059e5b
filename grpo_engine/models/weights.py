"""A policy's trained weights as files in their public layout, and back.

Collecting and writing are two steps: with sharded weights every rank takes part in collecting, and only the
first one has the result and writes it. Reading is the reverse.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from grpo_engine.models import lora
from grpo_engine.models.policy import Policy
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import fill, from_first, gathered


def folder_name(policy: Policy) -> str:
    """Name of the folder of the trained weights: LoRA's, or all of the model's."""
    return "model" if policy.peft_model is None else "adapter"


def trained_weights(policy: Policy) -> dict[str, Tensor]:
    """The trained tensors by name, whole, on the first rank's CPU; every rank must call it."""
    if policy.peft_model is not None:
        return lora.adapter_tensors(policy.peft_model)
    found: dict[int, Tensor] = {}  # weights that two layers share stay one tensor
    for tensor in (state := policy.model.state_dict(keep_vars=True)).values():
        if id(tensor) not in found:
            whole = gathered(tensor).detach()
            found[id(tensor)] = whole.cpu() if Ranks.current().is_first else torch.empty(0)
    return {name: found[id(tensor)] for name, tensor in state.items()}


def write_weights(policy: Policy, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the result of `trained_weights` in its public layout below `folder`."""
    target, source = folder / folder_name(policy), policy.source
    if policy.peft_model is not None:
        lora.write_adapter(policy.peft_model, tensors, target, source.name, source.revision)
        return
    policy.model.save_pretrained(target, state_dict=dict(tensors), safe_serialization=True)
    policy.tokenizer.save_pretrained(target)


def load_weights(policy: Policy, folder: Path) -> None:
    """Load the result of `write_weights`; every rank must call it."""
    source = folder / folder_name(policy)
    if policy.peft_model is not None:
        lora.load_adapter_weights(policy.peft_model, source)
        return
    saved: dict[str, Tensor] = {}
    if Ranks.current().is_first:
        # Through from_pretrained, because names on disk may differ from those in memory.
        saved = AutoModelForCausalLM.from_pretrained(source, dtype=policy.model.dtype).state_dict()
    for name, target in policy.model.state_dict().items():
        fill(target, from_first(saved.get(name, target), policy.device))
