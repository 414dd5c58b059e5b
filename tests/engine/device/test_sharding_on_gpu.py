"""A sharded policy on a real GPU, as a group of one rank: run by `make gpu-check`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.parallel.shards import gathered
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.run.rank_setup import shard, with_gathered_weights
from tests.engine.conftest import sum_rows, write_rows
from tests.engine.families.jobs import sampling_differences
from tests.engine.injection import after_steps, injected_trainer, steps_of
from tests.engine.run.distributed.runs import config_of

pytestmark = pytest.mark.needs_gpu
DEVICE = torch.device("cuda")
TOLERANCE = 1e-5
ADAPTER: dict[str, Any] = {"beta": 0.1}
FULL: dict[str, Any] = {"lora": "full", "beta": 0.0, "learning_rate": 2e-5}


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A group whose GPU collectives are NCCL's, as in a job of several ranks."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def job(folder: Path, settings: dict[str, Any]) -> RunConfig:
    make_model(folder / "model", hidden=64, layers=2, seed=3)
    write_rows(folder / "reinforcement.jsonl", sum_rows(9))
    return config_of(folder, {}, {"reinforcement": {**settings, "max_completion_tokens": 12}})


@pytest.mark.parametrize("settings", [ADAPTER, FULL], ids=["adapter", "full"])
def test_steps_of_a_sharded_policy_equal_a_cpus(settings: dict[str, Any], tmp_path: Path) -> None:
    config = job(tmp_path, settings)
    steps = steps_of(config)
    expected, here = after_steps(config, steps)
    found, there = after_steps(config, steps, place=partial(shard, device=DEVICE))
    assert found.keys() == expected.keys()
    worst = max(float((gathered(found[name]).cpu() - expected[name]).abs().max()) for name in expected)
    assert worst < TOLERANCE
    assert there["grad_norm"] == pytest.approx(here["grad_norm"], rel=1e-3)


def test_a_sharded_policy_samples_with_gathered_weights_what_it_trains(tmp_path: Path) -> None:
    config = job(tmp_path, ADAPTER)
    policy = injected_trainer(config, steps_of(config), place=partial(shard, device=DEVICE)).policy
    sampler = with_gathered_weights(TorchSampler(policy, 64), policy)
    assert float(sampling_differences(policy, sampler).max()) < 1e-3
