"""The choice of the forward pass and the decoder: right ones are taken at any size of logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    ModernBertDecoderConfig,
    PreTrainedConfig,
)

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.contract.errors import ModelError
from grpo_engine.models.fast import model as fast_model
from grpo_engine.models.lora import save_adapter
from grpo_engine.models.policy import Policy
from grpo_engine.models.proof import Choice, _float32
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.cache import RowCache
from grpo_engine.rollout.sampler.decoding import PlainDecoder
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_tokenizer
from tests.engine.realistic import load, write_model

ADAPTER = Lora(rank=4)
QWEN3 = ("Qwen3Config", {"head_dim": 16})
OTHERS = {
    "tied": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
}


def decoder_of(policy: Policy) -> Choice:
    TorchSampler(policy, 8)
    assert policy.decoder is not None
    return policy.decoder


def chosen(folder: Path, lora: Any, dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
    """Names of the forward pass and the decoder."""
    policy = load(folder, lora, dtype)
    return policy.forward.name, decoder_of(policy).name


@pytest.mark.parametrize("lora", [ADAPTER, "full"], ids=["adapter", "full"])
@pytest.mark.parametrize(("largest", "layers"), [(3, 8), (13, 8), (18, 28), (30, 8)])
def test_the_kernels_are_chosen_at_any_size_of_logits(
    largest: float, layers: int, lora: Any, tmp_path: Path
) -> None:
    kind, more = QWEN3
    folder = write_model(tmp_path, kind, largest_logit=largest, layers=layers, vocab_size=300, **more)
    assert chosen(folder, lora) == ("kernels", "kernels")


@pytest.mark.parametrize("name", OTHERS)
def test_the_kernels_are_chosen_for_every_family(name: str, tmp_path: Path) -> None:
    kind, more = OTHERS[name]
    folder = write_model(tmp_path, kind, largest_logit=30, layers=6, vocab_size=300, **more)
    assert chosen(folder, ADAPTER) == ("kernels", "kernels")


@pytest.mark.parametrize("padding", [299, 300], ids=["in the vocabulary", "without an embedding"])
@pytest.mark.parametrize(
    ("kind", "more", "decoder"),
    [
        (*QWEN3, "kernels"),
        ("Olmo2Config", {}, "shared_prompts"),
        ("MistralConfig", {"sliding_window": 4}, "own_cache"),
    ],
)
def test_the_number_of_the_padding_token_changes_no_decoder(
    kind: str, more: dict[str, Any], decoder: str, padding: int, tmp_path: Path
) -> None:
    """It is 151643 for Qwen3, beyond the vocabulary of the small copy on which decoders are proven."""
    folder = write_model(tmp_path, kind, largest_logit=13, layers=6, vocab_size=300, **more)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<{number}>" for number in range(len(tokenizer), padding)])
    tokenizer.add_special_tokens({"pad_token": "<padding>"})
    tokenizer.save_pretrained(folder)
    policy = load(folder, ADAPTER)
    assert policy.tokenizer.pad_token_id == padding
    sampler = TorchSampler(policy, 8)
    assert policy.decoder is not None
    assert policy.decoder.name == decoder
    prompts = [Prompt(0, "", (7, 8, 9), {}), Prompt(1, "", (7,), {})]
    for each in (sampler._decoder, lambda: PlainDecoder(policy.model)):
        sampler._decoder = each
        assert len(sampler.generate(prompts, 2, Sampling(max_tokens=3))) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_amplify_rounding_errors_keep_the_kernels(dtype: torch.dtype, tmp_path: Path) -> None:
    """In float32 log-probabilities of this model differ by more than the structure's tolerance."""
    more = {"initializer_range": 0.5, "hidden_size": 96, "vocab_size": 300}
    folder = write_model(tmp_path, "Qwen2Config", largest_logit=13, layers=36, **more)
    assert chosen(folder, "full", dtype) == ("kernels", "kernels")


def test_the_kernels_are_chosen_for_an_adapter_that_is_continued(tmp_path: Path) -> None:
    kind, more = QWEN3
    folder = write_model(tmp_path / "base", kind, largest_logit=18, layers=4, **more)
    last = Lora(rank=4, target_modules=("layers.3.mlp.down_proj", "q_proj"))
    parent = load(folder, last)
    assert parent.forward.name == "kernels"
    assert parent.peft_model is not None
    save_adapter(parent.peft_model, tmp_path / "adapter", "tiny", None)
    child = load(folder, None, adapter=str(tmp_path / "adapter"))
    assert (child.forward.name, decoder_of(child).name) == ("kernels", "kernels")


@pytest.mark.parametrize("lora", [ADAPTER, "full"], ids=["adapter", "full"])
@pytest.mark.parametrize("kind", ["Phi3Config", "Olmo2Config"])
def test_other_layers_share_prompts_and_say_why_not_by_kernels(kind: str, lora: Any, tmp_path: Path) -> None:
    policy = load(write_model(tmp_path, kind, largest_logit=30, layers=6, vocab_size=300), lora)
    decoder = decoder_of(policy)
    assert (policy.forward.name, decoder.name) == ("packed", "shared_prompts")
    assert policy.forward.slower_because == "the engine's kernels do not support its layers or its adapter"
    assert decoder.slower_because == policy.forward.slower_because
    assert not policy.forward.is_refused


def unrotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return x.clone()


def reversed_rotation(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return x * cosine - x.roll(x.shape[-1] // 2, -1) * sine


def without_weight(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * (x.float().square().mean(-1, keepdim=True) + epsilon).rsqrt().to(x.dtype)


def without_head_norm(block: Any, name: str, states: Tensor) -> Tensor:
    return states


MISTAKES: dict[str, tuple[str, Callable[..., Any]]] = {
    "no rotation": ("rotated", unrotated),
    "rotation the other way": ("rotated", reversed_rotation),
    "a norm without its weight": ("rms_norm", without_weight),
    "no norm of heads": ("_headwise", without_head_norm),
}


@pytest.mark.parametrize("largest", [3, 30])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_kernels_is_refused_with_a_reason(
    name: str, largest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, more = QWEN3
    folder = write_model(tmp_path, kind, largest_logit=largest, layers=2, **more)
    monkeypatch.setattr(fast_model, *MISTAKES[name])
    policy = load(folder, ADAPTER)
    assert (policy.fast, policy.forward.name) == (None, "packed")
    assert policy.forward.slower_because.startswith("in float32 its log-probabilities differ by")
    assert policy.forward.is_refused
    assert decoder_of(policy).name == "shared_prompts"


@pytest.mark.parametrize("lora", [ADAPTER, "full"], ids=["adapter", "full"])
def test_a_wrong_scale_in_the_decoder_is_refused_with_a_reason(
    lora: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, more = QWEN3
    policy = load(write_model(tmp_path, kind, largest_logit=30, layers=2, **more), lora)
    attend = RowCache.attend

    def scaled(rows: RowCache, layer: int, query: Any, key: Any, value: Any, scale: float) -> Tensor:
        return attend(rows, layer, query, key, value, 1.05 * scale)

    monkeypatch.setattr(RowCache, "attend", scaled)
    decoder = decoder_of(policy)
    assert policy.forward.name == "kernels"
    assert decoder.name == "own_cache"
    assert decoder.slower_because.startswith("in float32 its log-probabilities differ by")
    assert decoder.is_refused


def test_a_loss_of_precision_is_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right in float32, but with fewer bits than bfloat16 where the model's own layers have all of them."""
    kind, more = QWEN3
    folder = write_model(tmp_path, kind, largest_logit=18, layers=2, **more)
    rotated = fast_model.rotated

    def coarse(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        made = rotated(x, cosine, sine)
        return made if x.dtype == torch.float32 else (made * 8).round() / 8

    monkeypatch.setattr(fast_model, "rotated", coarse)
    policy = load(folder, ADAPTER)
    assert policy.forward.name == "packed"
    assert policy.forward.slower_because.startswith("its rounding errors are")


@pytest.mark.parametrize(("dtype", "layers"), [(torch.float32, 2), (torch.float32, 6), (torch.bfloat16, 2)])
def test_a_model_with_a_damaged_weight_is_refused(dtype: torch.dtype, layers: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path, "LlamaConfig", largest_logit=3, layers=layers)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 2] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="tiny computes NaN"):
        load(folder, ADAPTER, dtype)


def write_encoder(folder: Path, config: type[PreTrainedConfig], **more: Any) -> Path:
    """A small model of a family of encoders, with a tokenizer."""
    tokenizer = make_tokenizer(FAMILIES["gpt2"])
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    made = config(vocab_size=len(tokenizer), **sizes, **special, **more)
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_that_predicts_tokens_from_later_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny \(BertLMHeadModel\) predicts tokens from later ones"):
        load(write_encoder(tmp_path / "encoder", BertConfig), ADAPTER)
    load(write_encoder(tmp_path / "decoder", BertConfig, is_decoder=True), ADAPTER)


def test_a_configuration_that_requires_a_padding_token_is_proven(tmp_path: Path) -> None:
    tokens = {"bos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0}
    policy = load(write_encoder(tmp_path, ModernBertDecoderConfig, **tokens), ADAPTER)
    assert not policy.forward.is_refused


def test_the_pass_in_float32_widens_one_layer_at_a_time(tmp_path: Path) -> None:
    policy = load(write_model(tmp_path, "LlamaConfig", largest_logit=3, layers=4), ADAPTER)
    layers: Any = policy.model.base_model.layers
    wide: list[int] = []
    for layer in layers:
        layer.mlp.register_forward_hook(
            lambda *_: wide.append(sum(each.mlp.gate_proj.weight.dtype == torch.float32 for each in layers))
        )
    with torch.no_grad(), _float32(policy.model):
        logits = policy.model(torch.arange(6, 20)[None], use_cache=False).logits
    assert logits.dtype == torch.float32
    assert wide == [1, 1, 1, 1]
    weights = {name: each.dtype for name, each in policy.model.named_parameters() if "lora" not in name}
    assert set(weights.values()) == {torch.bfloat16}


def test_the_pass_in_float32_computes_what_a_wide_copy_does(tmp_path: Path) -> None:
    policy = load(write_model(tmp_path, "Qwen2Config", largest_logit=18, layers=3), ADAPTER)
    tokens = torch.arange(6, 40)[None]
    with torch.no_grad():
        with _float32(policy.model):
            found = policy.model(tokens, use_cache=False).logits
        expected = policy.model.float()(tokens, use_cache=False).logits
    assert torch.equal(found, expected)
