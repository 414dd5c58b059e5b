"""One of several ranks: `… resharding.py SOURCE TARGET`.

Loads Adam's moments from the folder SOURCE, if there is one, compares every bit with the expected ones, and
writes its shard to TARGET/optimizer, or `TARGET/optimizer.safetensors` if it is alone.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from grpo_engine.config.job import SupervisedHyperparameters
from grpo_engine.contract import manifest
from grpo_engine.parallel.shards import gathered, load_shards, save_shard, save_tensors
from grpo_engine.training.optimizer import Optimizer

SHAPES = {"a": (5, 3), "b": (2,), "c": (1, 7), "d": (9,), "e": (8, 2, 2)}
"""Some have fewer rows than there are ranks."""


def expected_moments() -> dict[str, Tensor]:
    torch.manual_seed(3)
    moments = {f"step/{name}": torch.tensor(7.0) for name in SHAPES}
    for key in ("exp_avg", "exp_avg_sq"):
        moments |= {f"{key}/{name}": torch.randn(shape) for name, shape in SHAPES.items()}
    moments["exp_avg/d"] = moments["exp_avg/d"].bfloat16()
    return moments


def main(source: Path, target: Path, world: int) -> None:
    parameters = {name: torch.nn.Parameter(_shared(torch.zeros(SHAPES[name]), world)) for name in SHAPES}
    optimizer = Optimizer(parameters, SupervisedHyperparameters())  # type: ignore[call-arg]
    expected = expected_moments()
    if source.is_dir():
        shards = source / manifest.SHARDS
        load_shards(optimizer.new_state_tensors, shards if shards.is_dir() else source)
    else:
        made = optimizer.new_state_tensors({name: each.dtype for name, each in expected.items()})
        for name, each in made.items():
            each.copy_(_shared(expected[name], world))
    state = optimizer.state_tensors()
    assert state.keys() == expected.keys()
    for name, each in state.items():
        whole = gathered(each)
        assert whole.dtype == expected[name].dtype
        assert torch.equal(whole, expected[name]), name
    target.mkdir(exist_ok=True)
    if world == 1:
        save_tensors(state, target / manifest.MOMENTS)
    else:
        save_shard(state, target / manifest.SHARDS)


def _shared(tensor: Tensor, world: int) -> Tensor:
    if world == 1 or not tensor.dim():
        return tensor
    return distribute_tensor(tensor, init_device_mesh("cpu", (world,)), [Shard(0)])


if __name__ == "__main__":
    num_ranks = int(os.environ["WORLD_SIZE"])
    if num_ranks > 1:
        dist.init_process_group("gloo")
    main(Path(sys.argv[1]), Path(sys.argv[2]), num_ranks)
    if num_ranks > 1:
        dist.destroy_process_group()
