"""The fast model: which models it takes, and that it is each of them in value and gradient."""

from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from examples.tiny_model import make_tokenizer
from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, SupervisedHyperparameters
from grpo_engine.models import lora
from grpo_engine.models.fast.model import KNOWN_POSITIONS, FastModel
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import PackedBatch
from tests.engine.conftest import waken
from tests.engine.injection import CPU
from tests.engine.models.test_shared_prompts import MIXED, batch_of

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
FITTING: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "qwen3, heads of their own size": ("Qwen3Config", {"head_dim": 16}),
    "qwen2 with biases": ("Qwen2Config", {}),
    "llama": ("LlamaConfig", {}),
    "llama with every bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama, one key head": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama, as many key heads": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama with stretched positions": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral without a window": ("MistralConfig", {"sliding_window": None}),
}
LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "learned positions": ("GPT2Config", {}),
    "norms that add one": ("GemmaConfig", {"head_dim": 8}),
    "another activation": ("LlamaConfig", {"hidden_act": "gelu"}),
    "a window": ("MistralConfig", {"sliding_window": 64}),
    "experts": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "angles that follow the longest row": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "angles that jump": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **LONG}},
    ),
}


def base_model(kind: str, **more: Any) -> PreTrainedModel:
    """Random in every parameter: fresh biases are 0 and fresh norms 1, and would hide a mistake."""
    config: PreTrainedConfig = getattr(transformers, kind)(
        **{**SIZES, "vocab_size": len(make_tokenizer()), **more}
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * (0.2 if "norm" in name else 0.5))
    return model


def load(folder: Path, model: PreTrainedModel, lora: Any, **more: Any) -> Policy:
    """The policy of these weights; its adapter already does something."""
    tokenizer = make_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = SupervisedHyperparameters(lora=lora)  # type: ignore[call-arg]
    source = ModelSource(name="tiny", path=str(folder), **more)
    policy = load_policy(source, settings, CPU, torch.float32, seed=5)
    waken(policy)
    return policy


def result(policy: Policy, batch: PackedBatch) -> tuple[Tensor, dict[str, Tensor]]:
    for parameter in policy.trainable.values():
        parameter.grad = None
    logprobs, _ = policy.logprobs(batch, temperature=0.7)
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return logprobs.detach(), {n: p.grad.clone() for n, p in policy.trainable.items() if p.grad is not None}


def ways(policy: Policy, batch: PackedBatch) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """By our kernels, and by the model's own padded forward."""
    assert policy.fast is not None
    found = [result(policy, batch)]
    fast, policy.fast, policy.shares_prompts = policy.fast, None, False
    found.append(result(policy, batch))
    policy.fast, policy.shares_prompts = fast, True
    return found


def assert_agree(policy: Policy) -> None:
    (fast, gradients), (plain, plain_gradients) = ways(policy, batch_of(*MIXED))
    assert float((fast - plain).abs().max()) < 1e-5
    assert set(gradients) == set(plain_gradients) == set(policy.trainable)
    largest = max(float(each.abs().max()) for each in plain_gradients.values())
    for name, each in plain_gradients.items():
        assert float((gradients[name] - each).abs().max()) < 2e-5 * largest, name


@pytest.mark.parametrize("lora", [Lora(rank=4), "full"], ids=["adapter", "all weights"])
@pytest.mark.parametrize("name", FITTING)
def test_the_llama_family_is_taken_and_computed_as_by_its_own_layers(
    name: str, lora: Any, tmp_path: Path
) -> None:
    kind, more = FITTING[name]
    assert_agree(load(tmp_path, base_model(kind, **more), lora))


@pytest.mark.parametrize("targets", [("q_proj", "down_proj"), ("v_proj",), ("gate_proj", "o_proj")])
def test_an_adapter_on_some_layers_trains_those(targets: tuple[str, ...], tmp_path: Path) -> None:
    policy = load(tmp_path, base_model("Qwen2Config"), Lora(rank=4, target_modules=targets))
    assert {name.split(".")[-4] for name in policy.trainable} == set(targets)
    assert_agree(policy)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("name", FOREIGN)
def test_other_models_are_left_to_their_own_layers(name: str, tmp_path: Path) -> None:
    kind, more = FOREIGN[name]
    policy = load(tmp_path, base_model(kind, **more), Lora(rank=4))
    assert policy.fast is None
    assert result(policy, batch_of((5, (3, 4))))[0].isfinite().all()


def test_a_model_of_the_right_parts_that_computes_another_thing_is_refused(tmp_path: Path) -> None:
    """As Gemma's: the same names, but the norm's weight counts from 1."""
    policy = load(tmp_path, base_model("LlamaConfig"), Lora(rank=4))

    def adding_one(norm: Any, x: Tensor) -> Tensor:
        inverse = (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
        return x * inverse * (1 + norm.weight)

    for module in policy.model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = MethodType(adding_one, module)
    assert FastModel.fitting(policy.model, torch.float32) is not None
    policy.prove_shared_prompts()
    assert policy.shares_prompts
    assert policy.fast is None


@pytest.mark.parametrize(
    "lora",
    [
        {"lora_dropout": 0.1},
        {"use_dora": True},
        {"lora_bias": True, "target_modules": ["q_proj"]},
    ],
)
def test_adapters_of_other_kinds_are_left_to_peft(lora: dict[str, Any]) -> None:
    model = base_model("Qwen2Config")
    assert FastModel.fitting(model, torch.float32) is not None
    wrapped = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": "all-linear", **lora}))
    assert FastModel.fitting(wrapped.get_base_model(), torch.float32) is None


class Quantised(torch.nn.Linear):
    """As some libraries do: a linear layer by its type that multiplies by another weight."""


@pytest.mark.parametrize("adapted", [False, True])
def test_linear_layers_that_are_not_plain_are_left_to_themselves(adapted: bool) -> None:
    model = base_model("LlamaConfig")
    layer: Any = model.base_model.layers[1]
    layer.mlp.up_proj = Quantised(32, 64, bias=False)
    if adapted:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")).get_base_model()
    assert FastModel.fitting(model, torch.float32) is None


def test_without_its_adapter_it_is_the_base_model(tmp_path: Path) -> None:
    model = base_model("Qwen2Config")
    policy, base = load(tmp_path / "a", model, Lora(rank=4)), load(tmp_path / "b", model, "full")
    batch = batch_of(*MIXED)
    expected = base.logprobs(batch)[0].detach()
    assert policy.fast is not None
    assert torch.allclose(policy.reference_logprobs(batch), expected, atol=1e-6)
    assert float((policy.logprobs(batch)[0].detach() - expected).abs().max()) > 1e-2


def test_the_parents_adapter_is_the_reference_of_its_child(tmp_path: Path) -> None:
    model, batch = base_model("Qwen3Config", head_dim=8), batch_of(*MIXED)
    parent = load(tmp_path / "base", model, Lora(rank=4))
    expected = parent.logprobs(batch)[0].detach()
    assert parent.peft_model is not None
    lora.save_adapter(parent.peft_model, tmp_path / "adapter", "tiny", None)
    child = load(tmp_path / "base", model, None, adapter=str(tmp_path / "adapter"))
    assert child.fast is not None
    waken(child, seed=8)
    assert torch.allclose(child.reference_logprobs(batch), expected, atol=1e-6)
    assert float((child.logprobs(batch)[0].detach() - expected).abs().max()) > 1e-2
    assert_agree(child)


def test_activations_computed_again_give_the_same_gradients(tmp_path: Path) -> None:
    policy, batch = load(tmp_path, base_model("Qwen2Config"), Lora(rank=4)), batch_of(*MIXED)
    logprobs, gradients = result(policy, batch)
    assert policy.keep_fewer_activations()
    assert not policy.keep_fewer_activations()
    again, recomputed = result(policy, batch)
    assert torch.equal(logprobs, again)
    assert all(torch.equal(gradients[name], recomputed[name]) for name in gradients)


def test_activations_computed_again_are_not_kept(tmp_path: Path) -> None:
    """Memory kept for the backward pass: without recomputation, many times a layer's input."""
    policy, batch = load(tmp_path, base_model("LlamaConfig"), Lora(rank=4)), batch_of(*MIXED)

    def kept() -> int:
        elements: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            elements.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy.logprobs(batch)
        return sum(elements)

    everything = kept()
    policy.keep_fewer_activations()
    assert kept() < everything / 4


def test_weights_that_are_merged_meanwhile_are_seen(tmp_path: Path) -> None:
    policy, batch = load(tmp_path, base_model("Qwen3Config", head_dim=8), Lora(rank=4)), batch_of(*MIXED)
    assert policy.peft_model is not None
    assert policy.fast is not None
    with torch.no_grad():
        apart, _ = policy.logprobs(batch)
        with lora.merged(policy.peft_model):
            assert all(each.attention_in.down is None for each in policy.fast.tensors())
            merged, _ = policy.logprobs(batch)
    assert torch.allclose(apart, merged, atol=1e-5)
    assert all(each.attention_in.down is not None for each in policy.fast.tensors())


@pytest.mark.parametrize("lora", [Lora(rank=4), "full"], ids=["adapter", "all weights"])
@pytest.mark.parametrize("kind", ["Qwen2Config", "Qwen3Config", "LlamaConfig"])
def test_bfloat16_is_as_close_to_float32_as_the_models_own_layers_are(
    kind: str, lora: Any, tmp_path: Path
) -> None:
    model, batch = base_model(kind), batch_of(*MIXED)
    exact, exact_gradients = result(load(tmp_path, model, lora), batch)
    settings = SupervisedHyperparameters(lora=lora)  # type: ignore[call-arg]
    rounded = load_policy(ModelSource(name="tiny", path=str(tmp_path)), settings, CPU, torch.bfloat16, seed=5)
    waken(rounded)
    assert rounded.fast is not None
    (fast, gradients), (plain, plain_gradients) = ways(rounded, batch)
    assert 0 < float((fast - exact).abs().max()) < 2 * float((plain - exact).abs().max())
    assert 0 < distance(gradients, exact_gradients) < 2 * distance(plain_gradients, exact_gradients)


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return sum(float((left[name].float() - right[name]).square().sum()) for name in right) ** 0.5


def test_an_unproven_model_may_not_keep_fewer_activations(make_policy: Callable[..., Policy]) -> None:
    assert not make_policy("gpt2").keep_fewer_activations()


def test_angles_are_the_models_own_at_any_position(tmp_path: Path) -> None:
    policy = load(tmp_path, base_model("LlamaConfig"), Lora(rank=4))
    assert policy.fast is not None
    x = torch.zeros(1, SIZES["hidden_size"])
    for positions in (torch.tensor([3, 0]), torch.tensor([5, KNOWN_POSITIONS, 2 * KNOWN_POSITIONS + 7])):
        cosine, sine = policy.fast.angles(x, positions)
        own_cosine, own_sine = policy.fast.base.rotary_emb(x, positions[None])
        half = own_sine.shape[-1] // 2
        assert torch.equal(cosine[:, 0], own_cosine[0])
        assert torch.equal(sine[:, 0, half:], own_sine[0, :, half:])
        assert torch.equal(sine[:, 0, :half], -own_sine[0, :, :half])
