"""Handing the trained policy to vLLM: a new version each step, proven to be the one that is served."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import ConfigError, PolicyMismatchError
from grpo_engine.models.lora import save_adapter
from grpo_engine.models.policy import Policy
from grpo_engine.models.weights import load_weights, trained_weights, write_weights
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.vllm.canary import trained_logprobs
from grpo_engine.rollout.sampler.vllm.engine import VllmEngine
from grpo_engine.rollout.sampler.vllm.options import why_unsupported
from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler, memory_folder
from tests.engine.conftest import assert_most_likely
from tests.engine.one_group import settings
from tests.engine.vllm.conftest import KEPT, PROMPTS

GREEDY = Sampling(max_tokens=24, temperature=0.0)
Make = Callable[..., VllmSampler]


def move(policy: Policy, size: float) -> None:
    """An update of every trained weight, by about `size`."""
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.trainable.values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * size


def served(sampler: VllmSampler) -> list[float]:
    return sampler.engine.prompt_logprobs(sampler.canary)


def tokens(sampler: Any) -> list[tuple[int, ...]]:
    return [group.completions[0].token_ids for group in sampler.generate(PROMPTS, 1, GREEDY)]


@pytest.mark.parametrize(("family", "lora"), [("qwen3", None), ("qwen3", "full"), ("gpt2", "full")])
def test_the_next_version_is_served_after_an_update(make_sampler: Make, family: str, lora: Any) -> None:
    sampler = make_sampler(family, lora)
    before, old_tokens = served(sampler), tokens(sampler)
    move(sampler.policy, 0.05)
    sampler.load_policy(1)
    assert served(sampler) == pytest.approx(trained_logprobs(sampler.policy, sampler.canary), abs=1e-4)
    assert served(sampler) != pytest.approx(before, abs=1e-2)
    groups = sampler.generate(PROMPTS, 1, GREEDY)
    assert [group.completions[0].token_ids for group in groups] != old_tokens
    for group in groups:
        assert_most_likely(sampler.policy, group)
    (group,) = sampler.generate(PROMPTS[:1], 1, GREEDY)
    assert group.completions[0].policy_version == 1


def test_a_version_that_is_served_already_costs_nothing(
    make_sampler: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler()

    def refuse(*arguments: Any) -> None:
        raise AssertionError("handed over again")

    monkeypatch.setattr(VllmEngine, "load_adapter", refuse)
    monkeypatch.setattr(VllmEngine, "prompt_logprobs", refuse)
    sampler.load_policy(0)
    assert tokens(sampler)


def test_a_sampler_continues_after_a_rest(make_sampler: Make) -> None:
    sampler = make_sampler()
    before = tokens(sampler)
    assert sampler.rest() == {"memory/sampler_slept": 0.0}  # only a GPU's memory is scarce
    sampler.load_policy(0)
    assert tokens(sampler) == before
    sampler.rest()
    assert tokens(sampler) == before


def test_only_the_newest_adapter_is_kept_and_its_folder_is_gone(make_sampler: Make) -> None:
    sampler = make_sampler()
    for version in (1, 2, 3):
        move(sampler.policy, 1e-3)
        sampler.load_policy(version)
    assert sampler.engine.core.list_loras() == {4}
    assert sampler.engine.adapter.lora_name == "policy-3"
    assert not Path(sampler.engine.adapter.lora_path).exists()


def test_an_adapters_weights_never_reach_the_disk_and_leftovers_of_a_kill_are_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "left").write_text("by a killed engine")
    memory = set(os.listdir("/proc/self/fd"))
    with memory_folder(folder, "weights") as made:
        assert made == folder
        (folder / "weights").write_bytes(b"large")
        assert (folder / "weights").read_bytes() == b"large"
        assert (folder / "weights").is_symlink()
        assert [path.name for path in folder.iterdir()] == ["weights"]
    assert not folder.exists()
    assert set(os.listdir("/proc/self/fd")) == memory


@pytest.mark.parametrize("size", [0.05, 1e-3, 1e-5])
def test_an_adapter_that_did_not_arrive_is_noticed_at_once(
    make_sampler: Make, monkeypatch: pytest.MonkeyPatch, size: float
) -> None:
    sampler = make_sampler()
    move(sampler.policy, 0.01)
    sampler.load_policy(1)
    monkeypatch.setattr(VllmEngine, "load_adapter", lambda self, name, number, folder: None)
    move(sampler.policy, size)
    with pytest.raises(
        PolicyMismatchError, match="still serves policy version 1, not policy version 2"
    ) as caught:
        sampler.load_policy(2)
    assert caught.value.code == "policy_mismatch"
    assert "vLLM by 0" in caught.value.evidence[1]


def test_weights_that_did_not_arrive_are_noticed_at_once(
    make_sampler: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler(lora="full")
    monkeypatch.setattr(VllmEngine, "load_weights", lambda self, weights: None)
    move(sampler.policy, 1e-5)
    with pytest.raises(PolicyMismatchError, match="still serves policy version 0"):
        sampler.load_policy(1)


def test_an_adapter_that_requests_forget_is_noticed_before_the_first_step(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sampler = VllmSampler(make_policy(), Runtime(sample_budget=8), 64, tmp_path)
    KEPT.append(sampler)
    load = VllmEngine.load_adapter

    def forget(self: VllmEngine, name: str, number: int, folder: Path) -> None:
        load(self, name, number, folder)
        self.adapter = None

    monkeypatch.setattr(VllmEngine, "load_adapter", forget)
    with pytest.raises(PolicyMismatchError, match="still serves the base model, not policy version 0"):
        sampler.load_policy(0)


def test_an_adapter_that_arrived_broken_is_noticed_at_once(
    make_sampler: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler()
    move(sampler.policy, 0.01)
    monkeypatch.setattr("grpo_engine.rollout.sampler.vllm.sampler.save_adapter", save_halved)
    with pytest.raises(PolicyMismatchError, match="does not serve the trainer's weights as policy version 1"):
        sampler.load_policy(1)


def save_halved(model: Any, *arguments: Any) -> None:
    """The adapter with every other weight at half its size."""
    kept = {name: p.data.clone() for name, p in model.named_parameters() if "lora_B" in name}
    for parameter in dict(model.named_parameters()).values():
        parameter.data = parameter.data * (0.5 if parameter.requires_grad else 1)
    save_adapter(model, *arguments)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = kept.get(name, parameter.data * 2)


def test_a_job_that_continues_an_adapter_serves_that_adapter(
    make_policy: Callable[..., Policy], make_sampler: Make, tmp_path: Path
) -> None:
    parent = make_policy()
    write_weights(parent, trained_weights(parent), tmp_path)
    for lora in (None, "full"):
        child = make_policy(lora=lora, adapter=str(tmp_path / "adapter"))
        if lora is None:
            load_weights(child, tmp_path)
        sampler = make_sampler(policy=child)
        assert served(sampler) == pytest.approx(trained_logprobs(parent, sampler.canary), abs=1e-4)


def test_adapters_of_any_rank_are_served(make_policy: Callable[..., Policy], make_sampler: Make) -> None:
    policy = make_policy(lora={"rank": 20, "target_modules": ["q_proj", "down_proj"]})
    sampler = make_sampler(policy=policy)
    for group in sampler.generate(PROMPTS, 1, GREEDY):
        assert_most_likely(policy, group)


def test_an_unsupported_model_is_refused_with_the_reason(make_policy: Callable[..., Policy]) -> None:
    adapter, full = make_policy("gpt2"), make_policy("gpt2", "full")
    assert why_unsupported(adapter, settings()) == "vLLM does not support adapters for GPT2LMHeadModel"
    assert why_unsupported(full, settings()) is None
    assert "temperature is 3.0" in str(why_unsupported(full, settings(temperature=3.0)))
    assert "eval_temperature is 0.001" in str(why_unsupported(full, settings(eval_temperature=0.001)))


def test_a_model_that_does_not_fit_is_refused_with_vllms_words(make_policy: Callable[..., Policy]) -> None:
    runtime = Runtime(sample_budget=8, sampler_memory=1e-9)
    with pytest.raises(ConfigError, match="vLLM cannot load qwen3") as caught:
        VllmSampler(make_policy(), runtime, 64, Path())
    assert "runtime.sampler" in caught.value.hint
