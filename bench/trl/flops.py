"""The floating point operations that a step requires, which are the numerator of `fraction_of_peak`.

Only required operations are counted, and only once: each prompt once per group, no weight gradients of frozen
weights, no recomputation. Anything else that an engine computes lowers its fraction.
"""

from typing import Any

from bench.trl.side import Spec


def decode_flops(config: Any, spec: Spec, tokens: float, length: float) -> float:
    """Operations to sample `tokens` tokens in completions of mean length `length`: products with all weights,
    attention to earlier tokens, and each prompt once for its group."""
    prompts = spec.prompts * spec.prompt_tokens
    before = 2 * (weights(config) - output(config)) + _attention(config, spec.prompt_tokens / 2)
    each = 2 * weights(config) + _attention(config, spec.prompt_tokens + length / 2)
    return prompts * before + tokens * each


def train_flops(config: Any, spec: Spec, tokens: float, length: float) -> float:
    """Operations to train on them: forward and backward through frozen weights, and the reference if β > 0.

    The output layer is only needed for predicted tokens.
    """
    prompts = spec.prompts * spec.prompt_tokens
    passes = 3 if spec.beta > 0 else 2
    layers = 2 * (tokens + prompts) * (weights(config) - output(config))
    head = 2 * tokens * output(config)
    attended = tokens * _attention(config, spec.prompt_tokens + length / 2)
    attended += prompts * _attention(config, spec.prompt_tokens / 2)
    # backward through attention costs twice the forward, because both factors have gradients
    return passes * (layers + head) + (passes + 1) * attended


def weights(config: Any) -> int:
    """Number of weights that a token is multiplied with."""
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config.intermediate_size
    return int(config.num_hidden_layers * layer + output(config))


def output(config: Any) -> int:
    return int(config.vocab_size * config.hidden_size)


def _attention(config: Any, seen: float) -> float:
    """Attention of one token to `seen` others: scores and values, in all layers."""
    return float(4 * seen * config.num_attention_heads * config.head_dim * config.num_hidden_layers)


def decode_bytes(config: Any, spec: Spec, length: float, itemsize: int) -> float:
    """Bytes that decoding must read. These are, in each step, all weights once, and the keys and values of
    each prompt (once for its group) and of each completion so far."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize
    seen = spec.prompts * (spec.prompt_tokens + spec.group_size * length / 2)
    return float(length * (weights(config) * itemsize + per_token * seen))
