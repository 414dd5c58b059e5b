"""Ranks that share a vLLM sample and train as one process with a vLLM of its own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig, hyperparameters_of
from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.models.device_memory import weight_bytes
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler
from grpo_engine.run.build import build_loop
from grpo_engine.run.rank_setup import open_policy
from tests.engine.conftest import largest_difference, sum_rows, write_rows
from tests.engine.run.distributed.runs import Run, config_of
from tests.engine.vllm.conftest import KEPT
from tests.engine.vllm.sharing_ranks import UNEVEN
from tests.support.forking import client as forking

HOSTS, SIZE = 2, 2
"""Two hosts of two ranks, which share a vLLM."""
ALONE = {"sampler": "vllm", "sample_budget": 16, "num_threads": 1}
SHORT = {"max_completion_tokens": 4}
CASES: dict[str, dict[str, Any]] = {
    "adapter": SHORT,
    "full": {**SHORT, "lora": "full", "learning_rate": 2e-5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    make_model(folder / "model", hidden=64, layers=2, seed=3)
    write_rows(folder / "reinforcement.jsonl", sum_rows(9))
    return folder


def job(folder: Path, method: dict[str, Any], **runtime: Any) -> RunConfig:
    return config_of(folder, ALONE | runtime, {"reinforcement": method})


@pytest.fixture(scope="module")
def budget(folder: Path) -> int:
    """Bytes of weights that a rank may hold: less than the model's."""
    config = job(folder, CASES["full"])
    policy = open_policy(config, hyperparameters_of(config.method), torch.device("cpu"), torch.float32)
    return int(0.6 * weight_bytes(policy.model))


@pytest.fixture(scope="module")
def together(folder: Path, budget: int) -> dict[str, Run]:
    """The jobs by four ranks in two groups, sharded, with a budget that no whole copy meets."""
    groups = {"ranks": HOSTS * SIZE, "tensor_parallel": SIZE}
    shared = {**groups, "sharding": "fsdp", "weight_budget_bytes": budget}
    runs = {name: job(folder, method, **shared) for name, method in CASES.items()}
    uneven = job(folder, {}, **groups)
    cases = {
        "runs": {name: config.model_dump(mode="json") for name, config in runs.items()},
        "uneven": uneven.model_dump(mode="json"),
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    module = ["tests.engine.vllm.sharing_ranks", str(folder), str(HOSTS), str(SIZE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "ranks.log").open("wb") as log:
        assert forking.start(module, environment, log.fileno()).wait(600) == 0, log.name
    results = {name: json.loads((folder / f"{name}.json").read_text()) for name in runs}
    assert all(result["is_sharded"] for result in results.values())
    return {name: Run.of(folder / name, result["events"]) for name, result in results.items()}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, folder: Path, together: dict[str, Run]) -> tuple[Run, Run]:
    """The run by one process with a vLLM of its own, and that of the groups."""
    loop = build_loop(job(folder, CASES[request.param]), folder / f"alone_{request.param}")
    KEPT.append(loop)
    events = [event.model_dump(mode="json") for event in loop.run(lambda: False)]
    return Run.of(folder / f"alone_{request.param}", events), together[request.param]


@pytest.mark.slow
def test_groups_sample_the_tokens_of_one_vllm(pair: tuple[Run, Run]) -> None:
    alone, shared = pair
    assert len(alone.completions) > 40
    assert shared.completions == alone.completions


@pytest.mark.slow
def test_groups_train_the_weights_of_one_process(pair: tuple[Run, Run]) -> None:
    alone, shared = pair
    assert largest_difference(alone.weights, shared.weights) < 1e-6
    assert largest_difference(alone.moments, shared.moments) < 1e-6


@pytest.mark.slow
def test_log_probabilities_of_groups_are_the_trainers(pair: tuple[Run, Run]) -> None:
    _, shared = pair
    differences = [m["sampling/sampling_logp_difference/max"] for m in shared.metrics if "loss" in m]
    assert len(differences) == 3
    assert max(differences) < 1e-4


@pytest.mark.slow
def test_ranks_that_sample_more_often_than_others_get_the_tokens_of_one_vllm(
    folder: Path, together: dict[str, Run]
) -> None:
    config = job(folder, {})
    policy = open_policy(config, hyperparameters_of(config.method), torch.device("cpu"), torch.float32)
    sampler = VllmSampler(policy, config.runtime, 64, folder)
    KEPT.append(sampler)
    sampler.load_policy(0)
    for rank in range(HOSTS * SIZE):
        found = json.loads((folder / f"uneven.{rank}.json").read_text())
        groups = [
            group
            for call in range(rank + 1)
            for group in sampler.generate([Prompt(rank, "", (6 + rank, 9), {})], 2, UNEVEN.starting_at(call))
        ]
        assert found["tokens"] == [[list(each.token_ids) for each in group.completions] for group in groups]
        assert found["agreed"] == [True, False]
        assert found["size"] == SIZE


def test_weights_above_the_budget_are_refused_with_the_ways_to_divide_them(
    folder: Path, budget: int, tmp_path: Path
) -> None:
    with pytest.raises(DeviceMemoryError, match="for training, the weights of tiny take") as caught:
        build_loop(job(folder, CASES["full"], weight_budget_bytes=budget), tmp_path)
    assert "runtime.sharding fsdp" in caught.value.hint
    assert "runtime.tensor_parallel" in caught.value.hint
