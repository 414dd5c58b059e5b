"""How many groups fit a device's free memory."""

import pytest
import torch
from transformers import DeepseekV3Config, Gemma4TextConfig, Qwen3Config

from grpo_engine.rollout.sampler.cache_size import group_bytes, groups_that_fit

GB = 10**9
QWEN3_4B = Qwen3Config(
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151_936,
)
CACHED_TOKEN = 2 * 36 * 8 * 128 * 2
"""Bytes of a token's keys and values in all layers."""


def needed(group_size: int, prompt_tokens: int, max_tokens: int, dtype: torch.dtype = torch.bfloat16) -> int:
    lengths = {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
    return group_bytes(QWEN3_4B, dtype, group_size=group_size, **lengths)


def test_a_token_takes_the_keys_and_values_of_all_layers() -> None:
    assert needed(8, 0, 1000) - needed(8, 0, 0) == 8000 * CACHED_TOKEN
    wide = needed(8, 0, 1000, torch.float32) - needed(8, 0, 0, torch.float32)
    assert wide == 2 * 8000 * CACHED_TOKEN


def test_a_group_takes_its_prompt_twice_and_the_logits_of_every_row() -> None:
    activations = 2 * (8 * 2560 + 3 * 9728)
    assert needed(8, 500, 1000) - needed(8, 0, 1000) == 1000 * CACHED_TOKEN + 500 * activations
    assert needed(8, 0, 0) == 8 * 16 * 151_936


@pytest.mark.parametrize(("free", "groups"), [(200 * GB, 135), (60 * GB, 40), (10 * GB, 6), (GB, 1), (0, 1)])
def test_as_many_groups_are_decoded_as_fit(free: int, groups: int) -> None:
    """512 completions of a 4B model, 1,024 tokens each, take 80 GB: no 80 GB device has them."""
    assert groups_that_fit(free, needed(8, 256, 1024)) == groups


def test_if_layers_differ_each_is_counted_as_the_largest() -> None:
    """Gemma 4: 5 layers of 8 heads of 256 numbers for each layer of 2 heads of 512."""
    shape = {"head_dim": 256, "num_key_value_heads": 8, "attention_k_eq_v": True, "num_hidden_layers": 6}
    config = Gemma4TextConfig(**shape, global_head_dim=512, num_global_key_value_heads=2)
    lengths = {"group_size": 1, "prompt_tokens": 0}
    made = [group_bytes(config, torch.bfloat16, max_tokens=tokens, **lengths) for tokens in (0, 1)]
    assert made[1] - made[0] == 2 * 6 * 8 * 512 * 2


def test_latent_attention_is_counted_with_whole_keys() -> None:
    """DeepSeek-V3: `head_dim` is 64, the part of a key with a position."""
    config = DeepseekV3Config(num_hidden_layers=6)
    lengths = {"group_size": 1, "prompt_tokens": 0}
    made = [group_bytes(config, torch.bfloat16, max_tokens=tokens, **lengths) for tokens in (0, 1)]
    assert made[1] - made[0] == 2 * 6 * 128 * (128 + 64) * 2
