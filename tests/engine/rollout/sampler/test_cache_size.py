"""How many groups fit a device's free memory."""

import pytest
import torch
from transformers import Qwen3Config

from grpo_engine.rollout.sampler.cache_size import DecodingMemory, groups_that_fit

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
MEMORY = DecodingMemory.of(QWEN3_4B, torch.bfloat16)


def test_a_token_takes_the_keys_and_values_of_all_layers() -> None:
    assert MEMORY.cached_token == 2 * 36 * 8 * 128 * 2
    assert DecodingMemory.of(QWEN3_4B, torch.float32).cached_token == 2 * MEMORY.cached_token
    assert MEMORY.row == 16 * 151_936


def test_a_group_takes_its_prompt_twice_and_every_completion() -> None:
    assert MEMORY.group(8, 0, 1000) - MEMORY.group(8, 0, 0) == 8000 * MEMORY.cached_token
    longer = MEMORY.group(8, 500, 1000) - MEMORY.group(8, 0, 1000)
    assert longer == 1000 * MEMORY.cached_token + 500 * MEMORY.prompt_token


@pytest.mark.parametrize(("free", "groups"), [(200 * GB, 135), (60 * GB, 40), (10 * GB, 6), (GB, 1), (0, 1)])
def test_as_many_groups_are_decoded_as_fit(free: int, groups: int) -> None:
    """512 completions of a 4B model, 1,024 tokens each, take 80 GB: no 80 GB device has them."""
    assert groups_that_fit(free, MEMORY, group_size=8, prompt_tokens=256, max_tokens=1024) == groups
