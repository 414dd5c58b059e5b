"""Rotary positions of the type `longrope` (Phi-3.5, Phi-4-mini), which have other angles in long sequences.

transformers chooses the angles in each forward pass, by its largest position. So the keys that a sampler has
cached would differ from the trainer's, and a sequence's values would depend on its neighbours in the
micro-batch. Like vLLM, a run has the angles of its longest possible sequence.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

LONG = "longrope"
FIXED = "fixed"
"""A type for which transformers changes no angles."""


def fix_positions(model: PreTrainedModel, max_tokens: int) -> None:
    """Compute all sequences with the angles of one with `max_tokens` tokens. Call it once."""
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        if isinstance(types, dict):
            for layer_type in [name for name, each in types.items() if each == LONG]:
                _choose_angles(module, max_tokens, layer_type)
                types[layer_type] = FIXED
        elif types == LONG:
            _choose_angles(module, max_tokens)
            module.rope_type = FIXED


def _choose_angles(module: Any, max_tokens: int, *layer_type: str) -> None:
    """Let transformers choose the angles, as in a forward pass over that many tokens."""
    device = next(module.buffers()).device
    with torch.no_grad():
        module(torch.zeros(1, device=device), torch.tensor([[max_tokens - 1]], device=device), *layer_type)
