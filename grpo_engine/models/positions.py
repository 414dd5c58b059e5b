"""Rotary positions of the type `longrope` (Phi-3.5, Phi-4-mini), which have other angles in long sequences.

transformers chooses the angles in each forward pass, by its largest position. So the keys that a sampler has
cached would differ from the trainer's, and a sequence's values would depend on its neighbours in the
micro-batch. Like vLLM, a run has the angles of its longest possible sequence; so has a request to a model.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

LONG = "longrope"
FIXED = "fixed"
"""A type for which transformers changes no angles."""


def fix_positions(model: PreTrainedModel, max_tokens: int) -> bool:
    """Compute all sequences with the angles of one with `max_tokens` tokens, until the next call.

    False: the model's angles do not depend on the length.
    """
    depends = False
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        if isinstance(types, dict):
            for layer_type in [name for name, each in types.items() if each in (LONG, FIXED)]:
                depends = True
                types[layer_type] = LONG
                _choose_angles(module, max_tokens, layer_type)
                types[layer_type] = FIXED
        elif types in (LONG, FIXED):
            depends = True
            module.rope_type = LONG
            _choose_angles(module, max_tokens)
            module.rope_type = FIXED
    return depends


def _choose_angles(module: Any, max_tokens: int, *layer_type: str) -> None:
    """Let transformers choose the angles, as in a forward pass over that many tokens."""
    device = next(module.buffers()).device
    with torch.no_grad():
        module(torch.zeros(1, device=device), torch.tensor([[max_tokens - 1]], device=device), *layer_type)
