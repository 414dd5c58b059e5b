"""How many floating point operations a step needs: the numerator of `fraction_of_peak`.

Counted is what the mathematics asks for, once: prompts once a group, no weight gradient of frozen weights, no
recomputation. What an engine computes beyond that is its own loss.
"""

from __future__ import annotations

from typing import Any

from bench.trl.side import Spec


def decode_flops(config: Any, spec: Spec, tokens: float, length: float) -> float:
    """Of sampling `tokens` tokens of completions `length` long on average: products with every weight, and
    attention to what is there already; before them each prompt, once for its group."""
    prompts = spec.prompts * spec.prompt_tokens
    before = 2 * (weights(config) - output(config)) + _attention(config, spec.prompt_tokens / 2)
    each = 2 * weights(config) + _attention(config, spec.prompt_tokens + length / 2)
    return prompts * before + tokens * each


def train_flops(config: Any, spec: Spec, tokens: float, length: float) -> float:
    """Of training them: forward and the way back through frozen weights, and the reference where β > 0.

    The output layer is only needed where a token is predicted.
    """
    prompts = spec.prompts * spec.prompt_tokens
    passes = 3 if spec.beta > 0 else 2
    layers = 2 * (tokens + prompts) * (weights(config) - output(config))
    head = 2 * tokens * output(config)
    attended = tokens * _attention(config, spec.prompt_tokens + length / 2)
    attended += prompts * _attention(config, spec.prompt_tokens / 2)
    # the way back through attention is twice the forward: gradients of both factors
    return passes * (layers + head) + (passes + 1) * attended


def weights(config: Any) -> int:
    """Entries of every matrix that a token is multiplied with."""
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config.intermediate_size
    return int(config.num_hidden_layers * layer + output(config))


def output(config: Any) -> int:
    return int(config.vocab_size * config.hidden_size)


def _attention(config: Any, seen: float) -> float:
    """Of one token that sees `seen` others: scores and mixing, in all layers."""
    return float(4 * seen * config.num_attention_heads * config.head_dim * config.num_hidden_layers)


def decode_bytes(config: Any, spec: Spec, length: float, itemsize: int) -> float:
    """Bytes that decoding must read: in each step all weights once, and the keys and values of each prompt
    once for its group and of each completion so far."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize
    seen = spec.prompts * (spec.prompt_tokens + spec.group_size * length / 2)
    return float(length * (weights(config) * itemsize + per_token * seen))
