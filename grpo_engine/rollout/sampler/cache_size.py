"""How many groups the torch sampler can decode at once in a device's free memory."""

from dataclasses import dataclass
from typing import Self

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


@dataclass(frozen=True, slots=True)
class DecodingMemory:
    """Bytes that decoding needs."""

    cached_token: int
    """Keys and values of one token in all layers."""
    prompt_token: int
    """Activations of one layer for one token while prompts are computed."""
    row: int
    """Logits of one row."""

    @classmethod
    def of(cls, config: PreTrainedConfig, dtype: torch.dtype) -> Self:
        heads, head_size = cached_heads(config)
        return cls(
            cached_token=2 * config.num_hidden_layers * heads * head_size * dtype.itemsize,
            prompt_token=(8 * config.hidden_size + 3 * feed_forward_width(config)) * dtype.itemsize,
            row=LOGIT_COPIES * 4 * config.vocab_size,
        )

    def group(self, group_size: int, prompt_tokens: int, max_tokens: int) -> int:
        """Bytes of a group whose prompt and completions have these lengths at most."""
        cached = PROMPT_PLACES * prompt_tokens + group_size * max_tokens
        return cached * self.cached_token + prompt_tokens * self.prompt_token + group_size * self.row


def groups_that_fit(
    free: int, memory: DecodingMemory, *, group_size: int, prompt_tokens: int, max_tokens: int
) -> int:
    """Groups to decode at once with `free` bytes. At least 1, because the memory is only an estimate."""
    return max(1, int(USABLE * free) // memory.group(group_size, prompt_tokens, max_tokens))
