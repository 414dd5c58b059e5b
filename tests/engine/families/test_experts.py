"""LoRA on all linear layers includes the experts; what an adapter leaves out is a warning."""

from collections.abc import Callable
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from grpo_engine.config.job import Lora
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.events import Warned
from grpo_engine.models import lora
from grpo_engine.models.lora_targets import left_out
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
}
pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")


@pytest.mark.parametrize("family", MIXTURES)
def test_all_linear_layers_include_every_expert(family: str, family_folder: Callable[[str], Path]) -> None:
    """`test_jobs.py` shows that each of them moves."""
    model = AutoModelForCausalLM.from_pretrained(family_folder(family))
    without = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    missing = left_out(without)
    assert {name: missing[name] for name in MIXTURES[family]} == MIXTURES[family]
    assert left_out(lora.attach(without.unload(), Lora(rank=4))) == {}


@pytest.mark.parametrize("family", MIXTURES)
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
            "The adapter leaves out 6 matrices of the layers: mlp.experts.down_proj (2), "
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
