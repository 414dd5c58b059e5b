"""What ranks that share a vLLM are given and refused, and how their weights are divided, without vLLM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ModelSource, Runtime, SupervisedHyperparameters
from grpo_engine.contract.errors import ConfigError, DeviceMemoryError
from grpo_engine.models.device_memory import weight_bytes
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.sampler.choice import open_sampler
from grpo_engine.rollout.sampler.vllm import sampler as vllm_sampler
from grpo_engine.rollout.sampler.vllm.options import cache_bytes, engine_arguments, refuse_uneven_groups
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_family
from tests.engine.one_group import settings


def test_a_group_samples_the_completions_of_all_its_ranks_in_the_memory_of_each(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "current", lambda: Ranks(1, 4))
    policy = make_policy("llama")
    policy.model.config.num_key_value_heads = 2
    alone, shared = (
        engine_arguments(policy, Runtime(sample_budget=10, tensor_parallel=k), 33) for k in (1, 2)
    )
    assert (alone["tensor_parallel_size"], shared["tensor_parallel_size"]) == (1, 2)
    assert {each["distributed_executor_backend"] for each in (alone, shared)} == {"external_launcher"}
    assert (alone["max_num_seqs"], shared["max_num_seqs"]) == (10, 20)
    assert shared["kv_cache_memory_bytes"] == alone["kv_cache_memory_bytes"] == 10 * cache_bytes(policy, 33)
    assert cache_bytes(policy, 33, 4) == cache_bytes(policy, 33, 2)  # a head is never divided


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ([("a", 3)] * 3, "the number of ranks on a host is 3"),
        ([("a", 2), ("a", 2), ("b", 1)], "the number of ranks on a host is 1"),
        ([("a", 2), ("b", 2), ("a", 2), ("b", 2)], "2 consecutive ranks are on several hosts"),
    ],
)
def test_ranks_that_do_not_form_groups_on_one_host_are_refused(
    places: list[tuple[str, int]], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "current", lambda: Ranks(0, len(places)))
    monkeypatch.setattr(Ranks, "gather", lambda self, mine: places)
    with pytest.raises(ConfigError, match=f"tensor_parallel is 2, but {reason}"):
        refuse_uneven_groups(Runtime(tensor_parallel=2))
    refuse_uneven_groups(Runtime())


def test_ranks_that_are_groups_of_two_hosts_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "current", lambda: Ranks(0, 4))
    monkeypatch.setattr(Ranks, "gather", lambda self, mine: [("a", 2), ("a", 2), ("b", 2), ("b", 2)])
    refuse_uneven_groups(Runtime(tensor_parallel=2))


def test_a_single_process_cannot_share_its_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="tensor_parallel is 2, but the number of ranks on a host is 1"):
        refuse_uneven_groups(Runtime(tensor_parallel=2))


def test_torch_does_not_silently_ignore_tensor_parallelism(make_policy: Callable[..., Policy]) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel is 2, but torch samples this job"):
        open_sampler(Runtime(tensor_parallel=2), make_policy(), settings(), 64, Path())


def test_torch_is_refused_a_model_that_no_rank_may_hold_whole(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    whole = weight_bytes(policy.model)
    open_sampler(Runtime(weight_budget_bytes=whole), policy, settings(), 64, Path())
    with pytest.raises(DeviceMemoryError, match="for sampling, the weights of qwen3 take") as caught:
        open_sampler(Runtime(weight_budget_bytes=whole - 1), policy, settings(), 64, Path())
    assert "runtime.tensor_parallel" in caught.value.hint


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "gpt-oss", "gemma3"])
def test_weights_handed_over_layer_by_layer_are_those_of_the_whole_model(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ModelSource(name=family, path=str(make_family(tmp_path, FAMILIES[family])))
    full = SupervisedHyperparameters.model_validate({"lora": "full"})
    policy = load_policy(source, full, torch.device("cpu"), torch.float32, seed=5)
    whole = dict(vllm_sampler._checkpoint_weights(policy))
    parts: list[list[str]] = []
    convert = vllm_sampler.revert_weight_conversion

    def counting(model: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parts.append(list(weights))
        return convert(model, weights)

    monkeypatch.setattr(vllm_sampler, "revert_weight_conversion", counting)
    monkeypatch.setattr(vllm_sampler, "sharded_modules", lambda model: [model])
    by_layer = dict(vllm_sampler._checkpoint_weights(policy))
    assert len(parts) >= policy.model.config.num_hidden_layers + 2
    assert by_layer.keys() == whole.keys()
    assert all(torch.equal(by_layer[name], weight) for name, weight in whole.items())
