"""Rows with shared prompts equal the model's own: windows, sinks, multipliers, values of another size."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_engine.models import proof
from grpo_engine.models.forward import output_head
from grpo_engine.models.logprobs import CappedHead, num_logits
from grpo_engine.models.shared_prompt_attention import Block, window_of
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from tests.engine.families.catalogue import FAMILIES, WINDOW
from tests.engine.families.models import make_family
from tests.engine.models.test_shared_prompts import MIXED, batch_of, both
from tests.engine.realistic import load, write_model

pytestmark = [
    # peft, on targets of fused experts that it names itself
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]
WINDOWED = ("mistral", "gemma2", "gemma3", "phi3", "olmo3", "gpt-oss")


@pytest.mark.parametrize("family", [*WINDOWED, "granite", "deepseek-v3"])
def test_values_and_gradients_of_all_weights_equal_the_models_own(
    family: str, family_folder: Callable[[str], Path]
) -> None:
    """Prompts and completions are longer and shorter than the window."""
    assert max(max(prompt, *completions) for prompt, completions in MIXED) > WINDOW
    policy = load(family_folder(family), "full", torch.float32)
    assert policy.forward.name == "packed"
    (packed, plain), (packed_gradients, plain_gradients) = both(policy, batch_of(*MIXED))
    assert float((packed - plain).abs().max()) < 2e-5
    assert len(packed_gradients) == len(policy.trainable)
    for left, right in zip(packed_gradients, plain_gradients, strict=True):
        assert float((left - right).abs().max()) < 3e-5 * max(1e-3, float(right.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["mistral", "gpt-oss"])
def test_a_packed_forward_that_ignores_windows_is_refused(
    family: str, dtype: torch.dtype, family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the model's window is longer than the proof's sequences."""
    within = Block.within
    monkeypatch.setattr(Block, "within", lambda block, window: within(block, None))
    policy = load(family_folder(family), {"rank": 4}, dtype)
    assert policy.forward.name == "padded"
    assert policy.forward.slower_because.startswith("in float32 its log-probabilities differ by")


def test_the_proof_of_a_windowed_model_uses_a_shorter_window(family_folder: Callable[[str], Path]) -> None:
    policy = load(family_folder("mistral"), {"rank": 4}, torch.float32)
    assert window_of(policy.model.config) == WINDOW
    twin = policy.proof(lambda model: model(torch.ones(1, 1)).logits)._twin
    assert window_of(twin.config) == proof.TWIN_WINDOW


def test_a_window_that_no_layer_uses_leaves_the_kernels(tmp_path: Path) -> None:
    """As in Qwen2 whose window begins behind its last layer."""
    unused = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
    policy = load(write_model(tmp_path, "Qwen2Config", largest_logit=18, layers=2, **unused), {"rank": 4})
    assert policy.model.config.sliding_window == 4
    assert policy.forward.name == "kernels"


def test_the_decoder_of_a_windowed_model_says_why_it_shares_no_prompts(
    family_folder: Callable[[str], Path],
) -> None:
    policy = load(family_folder("mistral"), {"rank": 4})
    TorchSampler(policy, 8)
    assert policy.decoder is not None
    assert policy.decoder.name == "own_cache"
    assert policy.decoder.slower_because == "the cache that a group shares does not support attention windows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latent_attention_keeps_each_prompt_once_for_its_group(
    dtype: torch.dtype, family_folder: Callable[[str], Path]
) -> None:
    policy = load(family_folder("deepseek-v3"), {"rank": 4}, dtype)
    TorchSampler(policy, 8)
    assert (policy.forward.name, policy.head.name) == ("packed", "frozen")
    assert policy.decoder is not None
    assert policy.decoder.name == "shared_prompts"


def test_layers_with_a_state_keep_whole_rows(family_folder: Callable[[str], Path]) -> None:
    policy = load(family_folder("qwen3.5"), {"rank": 4})
    assert policy.forward.name == "padded"
    expected = "layers of type linear_attention are computed only on whole rows"
    assert policy.forward.slower_because == expected


def test_layers_that_select_their_keys_keep_whole_rows(tmp_path: Path) -> None:
    """DeepSeek-V3.2 attends to 2,048 keys; the proof's sequences are shorter and could not show a mistake."""
    family = FAMILIES["deepseek-v3"]
    shape = {**family.shape, "index_head_dim": 16, "index_n_heads": 2}
    base = make_family(tmp_path / "base", replace(family, config="DeepseekV32Config", shape=shape))
    policy = load(base, {"rank": 4}, torch.float32)
    assert policy.forward.name == "padded"
    expected = "layers of type indexed_attention are computed only on whole rows"
    assert policy.forward.slower_because == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_with_a_state_are_sampled_with_the_models_own_cache(
    dtype: torch.dtype, family_folder: Callable[[str], Path]
) -> None:
    policy = load(family_folder("qwen3.5"), {"rank": 4}, dtype)
    TorchSampler(policy, 8)
    assert policy.decoder is not None
    assert policy.decoder.name == "own_cache"


def test_a_soft_cap_is_part_of_the_output_head(family_folder: Callable[[str], Path]) -> None:
    policy = load(family_folder("gemma2"), {"rank": 4}, torch.float32)
    head, hidden = output_head(policy.model), torch.randn(3, 32) * 100
    assert isinstance(head, CappedHead)
    assert num_logits(head, hidden) == policy.model.config.vocab_size
    assert 29.9 < float(head(hidden).abs().max()) <= 30.0
    assert policy.head.name == "recomputed"
