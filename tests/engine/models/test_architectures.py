"""Causal language models of unusual kinds: shared layer inputs, ALiBi, no attention, LoRA on embeddings.

`tests/engine/families` has those that users bring.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from examples.tiny_model import make_tokenizer
from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, SupervisedHyperparameters
from grpo_engine.contract.errors import ModelError
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.models.weights import load_weights, trained_weights, write_weights
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from tests.engine.conftest import waken
from tests.engine.injection import trained_batch

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "Qwen2Config": (True, GROUPED),
    "GPTNeoXConfig": (True, SIZES),
    "AfmoeConfig": (True, {**GROUPED, "num_dense_layers": 2}),  # passes its mask by name
    "BloomConfig": (False, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "MambaConfig": (False, {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
}
"""Configuration class → whether prompts can be shared, and its small shape."""


def policy_of(kind: str, folder: Path, lora: Any = None, **more: Any) -> Policy:
    tokenizer = make_tokenizer()
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = {**KINDS[kind][1], "vocab_size": len(tokenizer), "bos_token_id": None, **special, **more}
    config: PreTrainedConfig = getattr(transformers, kind)(**shape)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    chosen = Lora(rank=4, target_modules=("in_proj", "x_proj")) if kind == "MambaConfig" else Lora(rank=4)
    hyperparameters = SupervisedHyperparameters(lora=lora or chosen)  # type: ignore[call-arg]
    source = ModelSource(name=kind, path=str(folder))
    return load_policy(source, hyperparameters, torch.device("cpu"), torch.float32, seed=5)


def sample(policy: Policy) -> list[Group]:
    waken(policy)
    prompts = [Prompt(n, "", tuple(6 + (5 * n + i) % 60 for i in range(3 + 4 * n)), {}) for n in range(3)]
    return TorchSampler(policy, 64).generate(prompts, 3, Sampling(max_tokens=10, seed=3))


# peft, on targets of fused experts that it names itself
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_sampled_policy_is_the_trained_one(kind: str, tmp_path: Path) -> None:
    policy = policy_of(kind, tmp_path)
    assert policy.shares_prompts == KINDS[kind][0]
    for group in sample(policy):
        batch = trained_batch(group)
        logprobs, _ = policy.logprobs(batch)
        logprobs.sum().backward()
        assert float((logprobs.detach() - batch.sampled_logprobs_N).abs().max()) < 1e-4
    assert any(p.grad is not None and bool(p.grad.any()) for p in policy.trainable.values())


@pytest.mark.parametrize("kind", ["GPTNeoXConfig", "BloomConfig"])
def test_all_weights_survive_a_checkpoint(kind: str, tmp_path: Path) -> None:
    policy = policy_of(kind, tmp_path / "base", lora="full")
    with torch.no_grad():
        for parameter in policy.trainable.values():
            parameter.add_(torch.rand(parameter.shape))
    changed = {name: parameter.detach().clone() for name, parameter in policy.trainable.items()}
    write_weights(policy, trained_weights(policy), tmp_path)
    again = policy_of(kind, tmp_path / "base", lora="full")
    load_weights(again, tmp_path)
    assert all(torch.equal(parameter, changed[name]) for name, parameter in again.trainable.items())


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*:UserWarning")  # peft on merging for good
def test_an_adapter_on_tied_embeddings_is_sampled_as_trained(target: str, tmp_path: Path) -> None:
    lora = Lora(rank=4, target_modules=(target, "q_proj"))
    policy = policy_of("Qwen2Config", tmp_path, lora, tie_word_embeddings=True)
    for group in sample(policy):
        batch = trained_batch(group)
        with torch.no_grad():
            logprobs, _ = policy.logprobs(batch)
        assert float((logprobs - batch.sampled_logprobs_N).abs().max()) < 1e-4


def test_a_tokenizer_that_cannot_end_is_refused(tmp_path: Path) -> None:
    policy_of("Qwen2Config", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    source = ModelSource(name="endless", path=str(tmp_path))
    with pytest.raises(ModelError, match="the tokenizer of endless has no end-of-sequence token"):
        load_policy(
            source,
            SupervisedHyperparameters(lora=Lora()),  # type: ignore[call-arg]
            torch.device("cpu"),
            torch.float32,
            seed=5,
        )
