"""Two ranks, replicated or with sharded weights, sample, train, evaluate and save the same as one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.run.build import build_loop
from tests.engine.conftest import DIGITS, sum_rows, write_rows

ROOT = Path(__file__).parents[4]
TOLERANCE = 1e-6
CLOCKS = ("timing/", "perf/", "memory/", "step_time")
REPLICATED, SHARDED = {"sharding": "replicated"}, {"sharding": "fsdp"}
PIECES = {"token_budget": 24}
"""So small that one rank has more micro-batches than the other."""
FULL = {"lora": "full", "beta": 0.1, "learning_rate": 2e-5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicated": ({}, REPLICATED),
    "replicated_fresh_prompts": ({"dynamic_sampling": 2, "prompts_per_step": 3}, REPLICATED),
    "sharded": ({"beta": 0.1}, SHARDED),
    "sharded_pieces": ({"beta": 0.1, "num_iterations": 2, "prompts_per_step": 3}, SHARDED | PIECES),
    "sharded_entropies": ({"top_entropy_quantile": 0.3, "prompts_per_step": 3}, SHARDED | PIECES),
    "sharded_one_prompt": ({"prompts_per_step": 1, "kl_placement": "reward", "beta": 0.1}, SHARDED),
    "sharded_full": (FULL, SHARDED),
    "sharded_full_pieces": ({**FULL, "prompts_per_step": 3}, SHARDED | PIECES),
}
"""Name → hyperparameters and runtime."""
SUPERVISED = {"supervised": REPLICATED, "supervised_sharded": SHARDED | PIECES}


@dataclass(frozen=True)
class Run:
    """The result of a run: the public weights, Adam's moments and its events."""

    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]
    events: list[dict[str, Any]]

    @classmethod
    def of(cls, folder: Path, events: list[dict[str, Any]], step: int = 3) -> Run:
        checkpoint = folder / "checkpoints" / f"step-{step:08d}"
        (weights,) = [*checkpoint.glob("adapter/*.safetensors"), *checkpoint.glob("model/*.safetensors")]
        return cls(load_file(weights), load_file(checkpoint / "optimizer.safetensors"), events)

    @property
    def completions(self) -> list[tuple[Any, ...]]:
        """Sampled tokens, reward and advantage of each, training and evaluation alike, in order."""
        return [
            (event["split"], event["step"], group["row"], each["token_ids"], each["reward"])
            for event in self.events
            if event["type"] == "rollouts"
            for group in event["groups"]
            for each in group["completions"]
        ]

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Of each step and evaluation, without clocks."""
        return [
            {name: value for name, value in event["metrics"].items() if not name.startswith(CLOCKS)}
            for event in self.events
            if event["type"] in ("step_finished", "evaluated")
        ]


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def config_of(folder: Path, runtime: dict[str, Any], method: dict[str, Any], steps: int = 3) -> RunConfig:
    settings = {
        "n_steps": steps,
        "learning_rate": 1e-4,
        "adam_epsilon": 1e-6,
        "lora": {"rank": 4, "alpha": 8},
    }
    (kind, values), more = next(iter(method.items())), {}
    if kind == "reinforcement":
        settings |= {"prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 8, "beta": 0.0}
        more = {"grader": DIGITS}
    method = {"type": kind, kind: {**more, "hyperparameters": {**settings, **values}}}
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "seed": 7,
            "model": {"name": "tiny", "path": str(folder / "model")},
            "training_file": str(folder / f"{kind}.jsonl"),
            "validation_file": str(folder / f"{kind}.jsonl"),
            "method": method,
            "runtime": {"device": "cpu", **runtime},
        }
    )


def alone(config: RunConfig, folder: Path) -> Run:
    """The same run in this process."""
    trainer = build_loop(config, folder)
    return Run.of(folder, [event.model_dump(mode="json") for event in trainer.run(lambda: False)])


def together(folder: Path, configs: dict[str, RunConfig]) -> dict[str, Run]:
    """All of them by two ranks."""
    folder.mkdir(exist_ok=True)
    cases = {name: config.model_dump(mode="json") for name, config in configs.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.engine.run.distributed.cases", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = {name: json.loads((folder / f"{name}.json").read_text()) for name in configs}
    for name, config in configs.items():
        assert told[name]["is_sharded"] is (config.runtime.sharding == "fsdp")
    return {name: Run.of(folder / name, told[name]["events"]) for name in configs}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its rows."""
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "model", hidden=64, layers=2, seed=3)
    rows = sum_rows(9)
    write_rows(folder / "reinforcement.jsonl", rows)
    told = [{"messages": [*r["messages"], {"role": "assistant", "content": r["answer"]}]} for r in rows]
    write_rows(folder / "supervised.jsonl", told)
    return folder


@pytest.fixture(scope="module")
def configs(folder: Path) -> dict[str, RunConfig]:
    return {
        **{
            name: config_of(folder, runtime, {"reinforcement": values})
            for name, (values, runtime) in CASES.items()
        },
        **{
            name: config_of(folder, runtime, {"supervised": {"batch_size": 3}})
            for name, runtime in SUPERVISED.items()
        },
    }


@pytest.fixture(scope="module")
def runs(folder: Path, configs: dict[str, RunConfig]) -> dict[str, Run]:
    return together(folder / "together", configs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *SUPERVISED])
def test_two_ranks_end_with_the_weights_and_metrics_of_one_process(
    configs: dict[str, RunConfig], runs: dict[str, Run], tmp_path: Path, name: str
) -> None:
    one, two = alone(configs[name], tmp_path), runs[name]
    assert two.completions == one.completions
    assert largest_difference(one.weights, two.weights) <= TOLERANCE
    assert largest_difference(one.moments, two.moments) <= TOLERANCE
    assert len(two.metrics) == len(one.metrics) > 3
    for mine, other in zip(one.metrics, two.metrics, strict=True):
        assert other == pytest.approx(mine, abs=1e-5, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sharded", "sharded_full"])
def test_a_sharded_checkpoint_has_the_files_of_a_whole_one(
    configs: dict[str, RunConfig], runs: dict[str, Run], folder: Path, tmp_path: Path, name: str
) -> None:
    alone(configs[name], tmp_path)

    def shape(run: Path) -> dict[str, int]:
        files = (run / "checkpoints" / "step-00000003").rglob("*")
        return {path.name: path.stat().st_size for path in files if path.name != "manifest.json"}

    found, expected = shape(folder / "together" / name), shape(tmp_path)
    del found["state.json"], expected["state.json"]
    assert found == expected


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    """Steps 1 and 2 with one number of ranks, step 3 with the other: as if all were made alike."""
    values = {"checkpoint_interval": 2, "beta": 0.1}
    lora = {
        kind["sharding"]: config_of(folder, kind, {"reinforcement": values}) for kind in (REPLICATED, SHARDED)
    }
    full = config_of(folder, SHARDED, {"reinforcement": {**values, **FULL}})
    cases = {"replicated": lora["replicated"], "fsdp": lora["fsdp"], "full": full}
    whole = {name: alone(config, tmp_path / "one" / name) for name, config in cases.items()}
    for name in cases:
        before = Path("checkpoints") / "step-00000002"
        shutil.copytree(tmp_path / "one" / name / before, tmp_path / "two" / name / before)
    resumed = together(tmp_path / "two", cases)
    for name, run in resumed.items():
        assert largest_difference(whole[name].weights, run.weights) <= TOLERANCE, name
        shutil.rmtree(tmp_path / "two" / name / "checkpoints" / "step-00000003")
        back = alone(cases[name], tmp_path / "two" / name)
        assert back.weights.keys() == whole[name].weights.keys()
        assert largest_difference(whole[name].weights, back.weights) <= TOLERANCE, name
