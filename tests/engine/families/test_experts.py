"""LoRA on all linear layers includes the experts; what an adapter leaves out is a warning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    DbrxConfig,
    DeepseekV4Config,
    FalconH1Config,
    LagunaConfig,
    Llama4TextConfig,
    LongcatFlashConfig,
    MambaConfig,
    PreTrainedConfig,
    RecurrentGemmaConfig,
    Zamba2Config,
)

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, SupervisedHyperparameters
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.events import Warned
from grpo_engine.models import lora
from grpo_engine.models.loading import load_policy
from grpo_engine.models.lora_targets import left_out
from grpo_engine.models.policy import Policy
from tests.engine.families.catalogue import EXPERTS, SIZES
from tests.engine.families.jobs import (
    RESULT,
    adapter_config,
    engine_logprobs,
    plain_logprobs,
    run,
    supervised,
)

LINEAR = {"mlp.experts.gate_up_proj": 2, "mlp.experts.down_proj": 2}
MIXTURES = {
    "qwen3-moe": {**LINEAR, "mlp.gate.weight": 2},
    "qwen3.5-moe": {**LINEAR, "mlp.gate.weight": 2},
    "mixtral": {**LINEAR, "mlp.gate.weight": 2},
    "gpt-oss": {**LINEAR, "mlp.router.weight": 2},
    "glm4-moe": {
        "mlp.experts.gate_up_proj": 1,
        "mlp.experts.down_proj": 1,
        "mlp.gate.weight": 1,
        "mlp.down_proj.weight": 1,
        "mlp.shared_experts.down_proj.weight": 1,
    },
}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 4}
LAGUNA = {
    **SIZES,
    **EXPERTS,
    "layer_types": ["full_attention"] * 2,
    "num_attention_heads_per_layer": [4, 4],
    "mlp_layer_types": ["dense", "sparse"],
    "shared_expert_intermediate_size": 16,
}
LONGCAT = {
    **SIZES,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "zero_expert_num": 1,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 16,
    "ffn_hidden_size": 48,
    "num_layers": 1,
}
RANKS = {"qwen3-moe": 8, "mixtral": 8, "glm4-moe": 8}
"""PEFT gives each of two fused projections its own rank."""
pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")


@pytest.mark.parametrize("family", MIXTURES)
def test_all_linear_layers_include_every_expert(family: str, family_folder: Callable[[str], Path]) -> None:
    """`test_jobs.py` shows that each of them moves."""
    model = AutoModelForCausalLM.from_pretrained(family_folder(family))
    without = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    missing = left_out(without)
    assert {name: missing[name] for name in MIXTURES[family]} == MIXTURES[family]
    adapter = lora.attach(without.unload(), Lora(rank=4))
    assert left_out(adapter) == {}
    ranks = [layer.r["default"] for layer in lora.lora_layers(adapter)]
    assert lora.largest_rank(adapter) == max(ranks) == RANKS.get(family, 4)


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss"])
def test_named_layers_leave_out_the_others(family: str, family_folder: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(family_folder(family))
    adapter = lora.attach(model, Lora(rank=4, target_modules=("q_proj", "experts.down_proj")))
    missing = left_out(adapter)
    assert "mlp.experts.down_proj" not in missing
    assert missing["mlp.experts.gate_up_proj"] == 2


def test_dropout_on_experts_is_refused_with_the_reason(family_folder: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(family_folder("gpt-oss"))
    with pytest.raises(ConfigError, match=r"lora.dropout is 0.1, but PEFT trains a model's experts"):
        lora.attach(model, Lora(rank=4, dropout=0.1))


def test_a_parents_adapter_that_leaves_out_experts_is_a_warning(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = family_folder("gpt-oss")
    shape = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), shape).save_pretrained(tmp_path / "parent")
    assert not adapter_config(tmp_path / "parent")["target_parameters"]
    config = supervised(base, tmp_path, {"rank": 4})
    source = config.model.model_copy(update={"adapter": str(tmp_path / "parent")})
    events, _ = run(config.model_copy(update={"model": source}), tmp_path / "run")
    assert [(event.code, event.message) for event in events if isinstance(event, Warned)] == [
        (
            "weights_not_trained",
            "The adapter leaves out matrices of the layers: mlp.experts.down_proj (2), "
            "mlp.experts.gate_up_proj (2), mlp.router.weight (2).",
        )
    ]


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss"])
def test_a_continued_adapter_is_its_own_reference(
    family: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = family_folder(family)
    config = supervised(base, tmp_path, {"rank": 4})
    _, parent = run(config, tmp_path / "parent")
    without = engine_logprobs(parent, reference=True)
    assert float((without - plain_logprobs(base)).abs().max()) < 1e-4
    source = config.model.model_copy(update={"adapter": str(tmp_path / "parent" / RESULT / "adapter")})
    _, child = run(config.model_copy(update={"model": source}), tmp_path / "child")
    reference = engine_logprobs(child, reference=True)
    assert float((reference - engine_logprobs(parent)).abs().max()) < 1e-4
    assert float((reference - engine_logprobs(child)).abs().max()) > 0.05


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_of_dense_layers_and_experts_is_continued_on_a_quantised_base(
    family_folder: Callable[[str], Path], tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    base = ModelSource(name="glm4-moe", path=str(family_folder("glm4-moe")))

    def load(source: ModelSource, shape: Any) -> Policy:
        given = {"lora": shape, "quantization": kind}
        settings = SupervisedHyperparameters.model_validate(given)
        return load_policy(source, settings, torch.device("cpu"), dtype, seed=0)

    parent = load(base, {"rank": 4})
    for name, parameter in parent.trainable.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    assert parent.peft_model is not None
    lora.save_adapter(parent.peft_model, tmp_path / "adapter", base.name, None)
    child = load(base.model_copy(update={"adapter": str(tmp_path / "adapter")}), None)
    expected = engine_logprobs(parent)
    assert torch.equal(engine_logprobs(child), expected)
    for parameter in child.trainable.values():
        parameter.data += 0.05
    assert torch.equal(engine_logprobs(child, reference=True), expected)
    assert float((engine_logprobs(child) - expected).abs().max()) > 0.05
    assert child.trainable.keys() == parent.trainable.keys()


def test_a_router_that_is_a_linear_layer_is_trained_as_a_parameter() -> None:
    """Llama 4's returns two tensors, which PEFT's layer for products cannot add to."""
    sizes = {**SIZES, "num_local_experts": 2, "intermediate_size_mlp": 48}
    model = AutoModelForCausalLM.from_config(Llama4TextConfig(vocab_size=64, pad_token_id=0, **sizes))
    adapter = lora.attach(model, Lora(rank=4))
    assert left_out(adapter) == {}
    adapter(input_ids=torch.arange(8)[None]).logits.sum().backward()
    trained = [
        name for name, each in adapter.named_parameters() if "lora_B" in name and each.grad is not None
    ]
    assert sum("router" in name for name in trained) == 2


def test_a_layer_whose_matrices_peft_does_not_load_again_is_left_out_and_reported() -> None:
    """transformers' pattern for the file's name of Laguna's shared expert also fits its name in memory."""
    config = LagunaConfig(vocab_size=64, pad_token_id=0, sliding_window=16, **LAGUNA)
    model = AutoModelForCausalLM.from_config(config)
    adapter = lora.attach(model, Lora(rank=4))
    names = [f"mlp.shared_experts.{name}_proj.weight" for name in ("down", "gate", "up")]
    assert left_out(adapter) == dict.fromkeys(names, 1)
    assert any("layers.0.mlp.gate_proj.lora_A" in name for name, _ in adapter.named_parameters())


def test_a_layer_that_peft_refuses_is_left_out_and_reported() -> None:
    """The output layer of Mamba's mixers."""
    sizes = {**SIZES, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    model = AutoModelForCausalLM.from_config(FalconH1Config(vocab_size=64, pad_token_id=0, **sizes))
    assert left_out(lora.attach(model, Lora(rank=4))) == {"mamba.out_proj.weight": 2}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            MambaConfig(vocab_size=64, pad_token_id=0, **MAMBA),
            ["mixer.dt_proj.weight", "mixer.out_proj.weight"],
        ),
        (LongcatFlashConfig(vocab_size=64, pad_token_id=0, **LONGCAT), ["mlp.router.classifier.weight"]),
    ],
    ids=["mamba", "longcat"],
)
def test_a_layer_whose_weight_is_used_without_calling_it_is_left_out_and_reported(
    config: PreTrainedConfig, expected: list[str]
) -> None:
    """An adapter on it would never be trained."""
    adapter = lora.attach(AutoModelForCausalLM.from_config(config), Lora(rank=4))
    assert sorted(left_out(adapter)) == expected
    adapter(input_ids=torch.arange(8)[None], use_cache=False).logits.sum().backward()
    assert [
        name for name, each in adapter.named_parameters() if each.requires_grad and each.grad is None
    ] == []


def test_stacked_weights_that_are_no_experts_are_left_out_and_reported() -> None:
    """PEFT trains the gates of a recurrent block in the wrong shape."""
    sizes = {**SIZES, "lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]}
    model = AutoModelForCausalLM.from_config(RecurrentGemmaConfig(vocab_size=64, pad_token_id=0, **sizes))
    adapter = lora.attach(model, Lora(rank=4))
    gates = [f"temporal_block.rg_lru.{name}_gate_weight" for name in ("input", "recurrent")]
    assert left_out(adapter) == dict.fromkeys(gates, 1)
    adapter(input_ids=torch.arange(8)[None], use_cache=False).logits.sum().backward()
    assert any(each.grad is not None for name, each in adapter.named_parameters() if "lora_B" in name)


def test_a_layer_of_products_by_group_is_left_out_and_reported() -> None:
    """DeepSeek-V4's output projection; PEFT would multiply by the matrices of all groups."""
    sizes = {**SIZES, "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 8, "q_lora_rank": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = DeepseekV4Config(vocab_size=64, pad_token_id=0, sliding_window=8, **sizes, **experts)
    adapter = lora.attach(AutoModelForCausalLM.from_config(config), Lora(rank=4))
    assert left_out(adapter) == {"self_attn.o_a_proj.weight": 2}
    adapter(input_ids=torch.arange(8)[None], use_cache=False).logits.sum().backward()
    assert any(each.grad is not None for name, each in adapter.named_parameters() if "o_b_proj" in name)


def test_experts_in_two_dimensions_are_left_out_and_reported() -> None:
    """DBRX's block reads them from their module, where PEFT's wrapper does not have them."""
    experts = {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2}
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {"clip_qkv": 8.0, "rope_theta": 1e4}}
    config = DbrxConfig(vocab_size=64, pad_token_id=0, ffn_config=experts, **sizes)
    adapter = lora.attach(AutoModelForCausalLM.from_config(config), Lora(rank=4))
    assert left_out(adapter) == dict.fromkeys((f"ffn.experts.mlp.{name}" for name in ("w1", "v1", "w2")), 2)
    adapter(input_ids=torch.arange(8)[None], use_cache=False).logits.sum().backward()


def test_layers_that_share_a_matrix_are_left_out_and_reported() -> None:
    """Zamba2's attention blocks; merging would add the adapter of each one to the same matrix."""
    sizes = {**SIZES, "num_mem_blocks": 1, "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_d_state": 8}
    layers = {"num_hidden_layers": 2, "layers_block_type": ["hybrid", "hybrid"], "mamba_ngroups": 1}
    config = Zamba2Config(vocab_size=64, pad_token_id=0, **{**sizes, **layers})
    model = AutoModelForCausalLM.from_config(config)
    adapter = lora.attach(model, Lora(rank=4))
    assert set(left_out(adapter)) >= {
        f"shared_transformer.{name}.weight" for name in ("self_attn.q_proj", "feed_forward.down_proj")
    }
    weights = [layer.get_base_layer().weight for layer in lora.lora_layers(adapter)]
    assert len({id(weight) for weight in weights}) == len(weights) == 6
