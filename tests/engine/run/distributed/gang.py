"""Whole runs and given steps by two ranks, for tests that compare them with one process."""

import json
from pathlib import Path

import torch

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, RunConfig, SupervisedHyperparameters
from grpo_engine.models.loading import load_policy
from grpo_engine.models.lora import save_adapter
from tests.engine.conftest import cut
from tests.engine.ranks import started_ranks
from tests.engine.run.distributed.runs import Run
from tests.support.forking.client import engine_python

NUM_RANKS = 2


def write_adapter(model: Path, target: Path) -> None:
    """The adapter of an earlier job."""
    settings = SupervisedHyperparameters(lora=Lora(rank=4))  # type: ignore[call-arg]
    source = ModelSource(name="tiny", path=str(model))
    policy = load_policy(source, settings, torch.device("cpu"), torch.float32, seed=5)
    assert policy.peft_model is not None
    for name, parameter in policy.trainable.items():
        if "lora_B" in name:
            parameter.data.normal_(std=0.05)
    save_adapter(policy.peft_model, target, source.name, None)


def together(
    folder: Path,
    runs: dict[str, RunConfig],
    injected: dict[str, RunConfig],
    loaded: dict[str, RunConfig],
) -> dict[str, Run]:
    """All of them by two ranks; `folder` has the results of the injected and of the loaded jobs."""
    folder.mkdir(exist_ok=True)
    cases = {
        kind: {name: cut(config, ranks=NUM_RANKS).model_dump(mode="json") for name, config in configs.items()}
        for kind, configs in (("runs", runs), ("injected", injected), ("loaded", loaded))
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [engine_python(), "-m", "tests.engine.run.distributed.cases", folder]
    with started_ranks([command] * NUM_RANKS, [folder] * NUM_RANKS) as ranks:
        assert ranks.wait() == [0] * NUM_RANKS, (folder / "rank-0.log").read_text()
    results = {name: json.loads((folder / f"{name}.json").read_text()) for name in runs}
    for name, config in runs.items():
        assert results[name]["is_sharded"] is (config.runtime.sharding == "fsdp")
    return {name: Run.of(folder / name, results[name]["events"]) for name in runs}
