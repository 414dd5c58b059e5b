"""Quantised bases: what they compute, what they weigh, and that gradients pass through them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

from examples.tiny_model import make_model
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models import lora
from grpo_engine.models.forward import proof_batch
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.overlap.policy_snapshot import copied_policy
from service.jobs.intake.model_size import model_shape
from tests.engine.conftest import FAMILIES

KINDS = ("nf4", "int8")
NF4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32,
)


def logprobs(policy: Policy) -> Tensor:
    found: Tensor = policy.logprobs(proof_batch(policy.model))[0]
    return found


def with_values_of(plain: Policy, quantized: Policy) -> Policy:
    """The plain policy with the dequantised values of the quantised layers."""
    for name, layer in quantized.model.named_modules():
        if isinstance(layer, Linear4bit):
            values = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        elif isinstance(layer, Linear8bitLt):
            values = layer.weight.data * (layer.state.SCB / 127)[:, None]
        else:
            continue
        target = plain.model.get_submodule(name)
        target.weight.data = values.T.contiguous() if isinstance(target, Conv1D) else values
    return plain


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_the_dequantised_weights(
    make_policy: Callable[..., Policy], family: str, kind: str
) -> None:
    policy = make_policy(family, quantization=kind)
    found = logprobs(policy)
    plain = with_values_of(make_policy(family), policy)
    expected = logprobs(plain)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for each in (found, expected):
        each.sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in policy.trainable.items():
        assert parameter.grad is not None
        assert parameter.grad.any()
        torch.testing.assert_close(parameter.grad, plain.trainable[name].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradient_the_same_is_computed(make_policy: Callable[..., Policy], kind: str) -> None:
    policy = make_policy(quantization=kind)
    trained = logprobs(policy).detach()
    with torch.no_grad():
        torch.testing.assert_close(logprobs(policy), trained, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_base_shares_prompts_and_is_neither_fast_nor_merged(
    make_policy: Callable[..., Policy], dtype: torch.dtype
) -> None:
    policy = make_policy(quantization="nf4", dtype=dtype)
    assert policy.shares_prompts
    assert policy.fast is None
    assert policy.peft_model is not None
    assert not lora.mergeable(policy.peft_model)
    assert policy.compute_dtype == dtype
    assert policy.model.get_output_embeddings().weight.dtype == dtype


def test_peft_computes_the_same_on_the_quantised_base(
    make_policy: Callable[..., Policy], model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    policy = make_policy(quantization="nf4")
    assert policy.peft_model is not None
    lora.save_adapter(policy.peft_model, tmp_path / "adapter", "qwen3", None)
    base = AutoModelForCausalLM.from_pretrained(model_folder("qwen3"), quantization_config=NF4)
    for module in base.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
    theirs = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    ids = torch.arange(6, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(policy.model(ids).logits, theirs(ids).logits, atol=1e-5, rtol=0)


def test_a_copy_for_sampling_shares_the_quantised_weights(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(quantization="nf4")
    copied = copied_policy(policy)
    layers = [
        [each for each in made.model.modules() if isinstance(each, Linear4bit)] for made in (policy, copied)
    ]
    assert all(own.weight is theirs.weight for own, theirs in zip(*layers, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(logprobs(copied), logprobs(policy), atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimated_size_is_the_measured_one(
    make_policy: Callable[..., Policy], tmp_path: Path, kind: str
) -> None:
    folder = make_model(tmp_path / "model", hidden=256, layers=2, tie_embeddings=False)
    policy = make_policy(folder=folder, quantization=kind)
    frozen = [each for each in policy.model.parameters() if not each.requires_grad]
    measured = sum(each.nbytes for each in frozen)
    for layer in policy.model.modules():
        if isinstance(layer, Linear4bit):
            scales = layer.weight.quant_state
            measured += scales.absmax.nbytes + scales.state2.absmax.nbytes
        elif isinstance(layer, Linear8bitLt):
            measured += layer.state.SCB.nbytes
    assert model_shape(folder).weight_bytes(4, kind) == pytest.approx(measured, rel=1e-3)  # type: ignore[arg-type]
    assert policy.model.num_parameters() == model_shape(folder).num_parameters + sum(
        each.numel() for each in policy.trainable.values()
    )


def test_a_worker_without_bitsandbytes_refuses(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_engine.models.quantization.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="quantization is nf4, but bitsandbytes is not installed"):
        make_policy(quantization="nf4")
