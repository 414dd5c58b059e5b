"""How many groups the torch sampler can decode at once in a device's free memory."""

import torch
from transformers import PreTrainedConfig

from grpo_engine.models.device_memory import cached_heads, feed_forward_width

USABLE = 0.9
"""Share of the free memory to plan for; fragments and workspaces take the rest."""
LOGIT_COPIES = 4
"""float32 numbers per token of the vocabulary that are needed to draw a token."""
PROMPT_PLACES = 2
"""Prompts in the cache, as a multiple of the groups that are decoded at once. There are more prompts than
groups because some have few rows left."""


def group_bytes(
    config: PreTrainedConfig, dtype: torch.dtype, *, group_size: int, prompt_tokens: int, max_tokens: int
) -> int:
    """Bytes that decoding a group needs if its prompt and completions have these lengths at most: keys and
    values in all layers, activations of one layer while prompts are computed, and a row's logits."""
    heads, head_size = cached_heads(config)
    cached_token = 2 * config.num_hidden_layers * heads * head_size * dtype.itemsize
    prompt_token = (8 * config.hidden_size + 3 * feed_forward_width(config)) * dtype.itemsize
    row = LOGIT_COPIES * 4 * config.vocab_size
    cached = PROMPT_PLACES * prompt_tokens + group_size * max_tokens
    return cached * cached_token + prompt_tokens * prompt_token + group_size * row


def groups_that_fit(free: int, bytes_of_group: int) -> int:
    """Groups to decode at once with `free` bytes. At least 1, because the memory is only an estimate."""
    return max(1, int(USABLE * free) // bytes_of_group)
