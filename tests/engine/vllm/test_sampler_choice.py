"""Which sampler a job gets, and vLLM's arguments, without vLLM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler import choice
from grpo_engine.rollout.sampler.choice import open_sampler
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.sampler.vllm.engine import VllmEngine
from grpo_engine.rollout.sampler.vllm.options import cache_bytes, engine_arguments
from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler
from tests.engine.one_group import settings

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_a_cpu_samples_with_torch(make_policy: Callable[..., Policy], name: Any) -> None:
    assert isinstance(
        open_sampler(Runtime(sampler=name), make_policy(), settings(), 64, Path()), TorchSampler
    )


def test_vllm_that_is_not_installed_is_refused_with_the_way_to_get_it(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="vLLM is not installed here") as caught:
        open_sampler(Runtime(sampler="vllm"), make_policy(), settings(), 64, Path())
    assert "make setup-vllm" in caught.value.hint


def test_a_gpu_without_vllm_samples_with_torch(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    policy = make_policy()
    policy.device = CUDA
    assert not choice._prefers_vllm(Runtime(), policy)
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    assert choice._prefers_vllm(Runtime(), policy)
    assert not choice._prefers_vllm(Runtime(sampler="torch"), policy)


def test_a_gpu_gives_vllm_its_share_and_can_let_it_sleep(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    policy.device = CUDA
    found = engine_arguments(policy, Runtime(sampler_memory=0.3, sample_budget=256), 900)
    assert found["gpu_memory_utilization"] == 0.3
    assert found["enable_sleep_mode"] is True
    assert found["enforce_eager"] is False
    assert "kv_cache_memory_bytes" not in found
    assert (found["max_model_len"], found["max_num_seqs"]) == (900, 256)


def test_a_cpu_gets_a_cache_for_all_completions_at_once(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    found = engine_arguments(policy, Runtime(sample_budget=10), 33)
    keys_and_values, layers, heads, size, float32 = 2, 2, 1, 32, 4
    assert cache_bytes(policy, 33) == 64 * keys_and_values * layers * heads * size * float32
    assert found["kv_cache_memory_bytes"] == 10 * cache_bytes(policy, 33)
    assert found["enable_sleep_mode"] is False
    assert found["enforce_eager"] is True


@pytest.mark.parametrize(("rank", "served"), [(1, 8), (16, 16), (20, 32), (512, 512)])
def test_the_adapters_rank_is_rounded_up_to_one_that_vllm_has(
    make_policy: Callable[..., Policy], rank: int, served: int
) -> None:
    found = engine_arguments(make_policy(lora={"rank": rank}), Runtime(), 64)
    assert found["max_lora_rank"] == served


def test_full_fine_tuning_starts_vllm_without_adapters(make_policy: Callable[..., Policy]) -> None:
    assert "enable_lora" not in engine_arguments(make_policy(lora="full"), Runtime(), 64)


class _Core:
    """A fake vLLM that records sleeping and waking, which only a GPU supports."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self) -> None:
        self.calls.append("wake")


GB = 10**9


@pytest.mark.parametrize(
    ("free", "peaks", "slept"),
    [
        (13 * GB, [10 * GB, 0, 0], [1.0, 0.0, 0.0]),
        (11 * GB, [10 * GB, 0, 0], [1.0, 1.0, 1.0]),
        (1 * GB, [0, 0, 0], [1.0, 0.0, 0.0]),
    ],
    ids=["training fits beside it", "it does not fit", "nothing was trained"],
)
def test_vllm_sleeps_only_until_training_is_known_to_fit_beside_it(
    free: int,
    peaks: list[int],
    slept: list[float],
    make_policy: Callable[..., Policy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`peaks`: what the trainer allocates between two turns of sampling, at first in its largest step."""
    sampler, left = sampler_on_gpu(make_policy()), iter(peaks)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(left))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GB))
    found = []
    for _ in range(3):
        found.append(sampler.rest()["memory/sampler_slept"])
        sampler.load_policy(0)
        assert not sampler.engine.asleep
    assert found == slept
    core: Any = sampler.engine.core
    assert core.calls == ["sleep 1", "wake"] * int(sum(slept))


def sampler_on_gpu(policy: Policy) -> VllmSampler:
    """A sampler that serves version 0, without a vLLM behind it."""
    policy.device = CUDA
    sampler, engine = object.__new__(VllmSampler), object.__new__(VllmEngine)
    engine.core, engine.can_sleep, engine.asleep = _Core(), True, False
    sampler.policy, sampler.engine, sampler.version = policy, engine, 0
    sampler.training_bytes, sampler.stays_awake = 0, False
    return sampler


@pytest.mark.parametrize(("can_sleep", "expected"), [(True, ["sleep 1", "wake", "sleep 1"]), (False, [])])
def test_an_engine_sleeps_once_and_wakes_once(can_sleep: bool, expected: list[str]) -> None:
    engine = object.__new__(VllmEngine)
    engine.core, engine.can_sleep, engine.asleep = _Core(), can_sleep, False
    for call in (engine.wake, engine.sleep, engine.sleep, engine.wake, engine.wake, engine.sleep):
        call()
    assert engine.core.calls == expected
