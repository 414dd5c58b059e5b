"""Cases one after another, as one of several ranks: `… cases.py FOLDER`.

FOLDER holds `cases.json`. Each of its `runs` (name → RunConfig) is a whole run in `FOLDER/NAME`, and the
first rank writes its events, and whether its weights were sharded, to `FOLDER/NAME.json`. Each of its
`injected` jobs trains three steps on given completions; every rank writes parameters and metrics to
`FOLDER/NAME.RANK.pt`. The policy of each of its `loaded` jobs is opened only; every rank writes how many
bytes its memory grew meanwhile, how many its weights have, and how much its memory grew while it made an
optimiser step and while it saved Adam's moments, to `FOLDER/NAME.RANK.json`.
"""

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from grpo_engine.config.job import RunConfig, hyperparameters_of
from grpo_engine.contract import manifest
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import gathered, save_shard
from grpo_engine.run.build import build_loop
from grpo_engine.run.rank_setup import agreed_by_ranks, joined_ranks, open_policy
from grpo_engine.training.policy_updater import PolicyUpdater
from tests.engine.injection import after_steps, steps_of

M_MMAP_THRESHOLD = -3


def main(folder: Path) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    runs, injected, loaded = (_configs(cases[kind]) for kind in ("runs", "injected", "loaded"))
    with joined_ranks(next(iter(runs.values()))) as first:
        for name, config in loaded.items():
            result = folder / f"{name}.{Ranks.current().rank}.json"
            result.write_text(json.dumps(load(config, folder)))
        for name, config in runs.items():
            limits = {"num_threads": first.runtime.num_threads}
            runtime = config.runtime.model_copy(update=limits)
            run(config.model_copy(update={"runtime": runtime}), folder, name)
        torch.set_num_threads(1)
        for name, config in injected.items():
            torch.save(after_steps(config, steps_of(config)), folder / f"{name}.{Ranks.current().rank}.pt")


def _configs(cases: dict[str, object]) -> dict[str, RunConfig]:
    return {name: RunConfig.model_validate(case) for name, case in cases.items()}


def run(config: RunConfig, folder: Path, name: str) -> None:
    trainer = build_loop(config, folder / name)
    events = [event.model_dump(mode="json") for event in trainer.run(agreed_by_ranks(lambda: False))]
    if Ranks.current().is_first:
        policy = trainer.method.policy
        is_sharded = isinstance(policy.model, FSDPModule)
        assert policy.forward.name == ("packed" if is_sharded else "kernels")
        (folder / f"{name}.json").write_text(json.dumps({"events": events, "is_sharded": is_sharded}))


def load(config: RunConfig, folder: Path) -> dict[str, int]:
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 2**16)  # freed tensors leave the process at once
    settings = hyperparameters_of(config.method)
    with growth() as loading:
        policy = open_policy(config, settings, torch.device("cpu"), torch.float32)
    libc.malloc_trim(0)  # the step must not use memory that is free but still counted
    before = _status("VmRSS")
    updater = PolicyUpdater(policy, settings, None, total_steps=1)
    for parameter in policy.trainable.values():
        parameter.grad = torch.ones_like(parameter)
    updater.optimizer.step(1e-4, 0.0, step=1)
    training = _status("VmHWM") - before
    with growth() as saving:
        save_shard(updater.optimizer.state_tensors(), folder / manifest.SHARDS)
    dist.barrier()
    again = PolicyUpdater(policy, settings, None, total_steps=1)
    again.load_moments(folder)
    for name, tensor in updater.optimizer.state_tensors().items():
        assert torch.equal(gathered(again.optimizer.state_tensors()[name]), gathered(tensor)), name
    held = sum(each.to_local().nbytes for each in policy.model.parameters() if isinstance(each, DTensor))
    return {"held": held, "loading": loading[0], "training": training, "saving": saving[0]}


@contextmanager
def growth() -> Iterator[list[int]]:
    """A list that holds, afterwards, by how many bytes the process's memory grew at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at the memory of now
    before, found = _status("VmRSS"), list[int]()
    yield found
    found.append(_status("VmHWM") - before)


def _status(name: str) -> int:
    """Bytes by /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
