"""One of four ranks: `… resharding.py FOLDER`. Passes Adam's moments through several numbers of ranks.

For each number in `WORLDS`, that many ranks load the moments that the last ones wrote, compare every bit with
the expected ones, and write their shards to `FOLDER/<place>/optimizer`, or one file if there is one rank.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from grpo_engine.config.job import SupervisedHyperparameters
from grpo_engine.contract import manifest
from grpo_engine.parallel.shards import gathered, load_shards, save_shard, save_tensors
from grpo_engine.training.optimizer import Optimizer

WORLDS = (1, 4, 2, 3, 1)
SHAPES = {"a": (5, 3), "b": (2,), "c": (1, 7), "d": (9,), "e": (8, 2, 2)}
"""Some have fewer rows than there are ranks."""


def expected_moments() -> dict[str, Tensor]:
    torch.manual_seed(3)
    moments = {f"step/{name}": torch.tensor(7.0) for name in SHAPES}
    for key in ("exp_avg", "exp_avg_sq"):
        moments |= {f"{key}/{name}": torch.randn(shape) for name, shape in SHAPES.items()}
    moments["exp_avg/d"] = moments["exp_avg/d"].bfloat16()
    return moments


def pass_on(source: Path | None, target: Path, mesh: DeviceMesh | None) -> None:
    """Load, compare and write as one of the mesh's ranks; None: alone."""
    parameters = {name: torch.nn.Parameter(_shared(torch.zeros(SHAPES[name]), mesh)) for name in SHAPES}
    optimizer = Optimizer(parameters, SupervisedHyperparameters())  # type: ignore[call-arg]
    expected = expected_moments()
    if source is not None:
        shards = source / manifest.SHARDS
        load_shards(optimizer.new_state_tensors, shards if shards.is_dir() else source)
    else:
        made = optimizer.new_state_tensors({name: each.dtype for name, each in expected.items()})
        for name, each in made.items():
            each.copy_(_shared(expected[name], mesh))
    state = optimizer.state_tensors()
    assert state.keys() == expected.keys()
    for name, each in state.items():
        whole = gathered(each)
        assert whole.dtype == expected[name].dtype
        assert torch.equal(whole, expected[name]), name
    target.mkdir(exist_ok=True)
    if mesh is None:
        save_tensors(state, target / manifest.MOMENTS)
    else:
        save_shard(state, target / manifest.SHARDS)


def _shared(tensor: Tensor, mesh: DeviceMesh | None) -> Tensor:
    return tensor if mesh is None or not tensor.dim() else distribute_tensor(tensor, mesh, [Shard(0)])


def main(folder: Path) -> None:
    source = None
    for place, world in enumerate(WORLDS):
        target = folder / str(place)
        mesh = DeviceMesh("cpu", list(range(world))) if world > 1 else None
        if dist.get_rank() < world:
            pass_on(source, target, mesh)
        dist.barrier()
        source = target


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(Path(sys.argv[1]))
    dist.destroy_process_group()
