"""Jobs on a quantised base: every method trains, and a resumed run equals an undisturbed one, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig, hyperparameters_of
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.events import Evaluated, StepFinished
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.run.build import build_loop
from grpo_engine.run.rank_setup import open_policy
from tests.engine.conftest import cut, largest_difference, parameters_of, sum_rows, trained, write_rows

STEPS = 3
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"lora": {"rank": 4, "dropout": 0.1}, "num_iterations": 2, "beta": 0.1},
    "self-distillation": {"self_distillation": {"weight": 1.0, "feedback": "grader"}},
    "sampled during training": {"max_staleness": 1},
}


def supervised(config: RunConfig, folder: Path) -> RunConfig:
    """Demonstrations of sums instead of rewards."""
    rows = [{"prompt": row["messages"][0]["content"], "completion": row["answer"]} for row in sum_rows(12)]
    settings = {"n_steps": STEPS, "lora": {"rank": 4}, "learning_rate": 1e-3, "quantization": "nf4"}
    method = {"type": "supervised", "supervised": {"hyperparameters": settings}}
    given = config.model_dump() | {"method": method}
    given["training_file"] = given["validation_file"] = str(write_rows(folder / "shown.jsonl", rows))
    return RunConfig.model_validate(given)


def job(make_config: Callable[..., RunConfig], folder: Path, name: str) -> RunConfig:
    if name == "supervised":
        return supervised(make_config(), folder)
    kind = "int8" if name == "int8" else "nf4"
    config = make_config(n_steps=STEPS, quantization=kind, eval_interval=2, **METHODS.get(name, {}))
    return config.model_copy(update={"validation_file": config.training_file})


@pytest.mark.parametrize("name", [*METHODS, "int8", "supervised"])
def test_a_quantised_job_of_every_method_trains_evaluates_and_resumes_exactly(
    make_config: Callable[..., RunConfig], tmp_path: Path, name: str
) -> None:
    config = job(make_config, tmp_path, name)
    loop = build_loop(config, tmp_path / "whole")
    before = parameters_of(loop.method)
    events = list(loop.run(lambda: False))
    whole = parameters_of(loop.method)
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert [event.step for event in steps] == list(range(1, STEPS + 1))
    assert sum(isinstance(event, Evaluated) for event in events) >= 2
    assert largest_difference(before, whole) > 1e-5
    first = build_loop(config, tmp_path / "broken")
    list(first.run(lambda: first.state.step == 1))
    assert largest_difference(parameters_of(trained(config, tmp_path / "broken")), whole) == 0.0


def test_the_adapter_names_the_base_without_its_quantisation(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trained(make_config(n_steps=1, quantization="nf4"), tmp_path / "run")
    (path,) = (tmp_path / "run").rglob("adapter_config.json")
    assert json.loads(path.read_text())["base_model_name_or_path"] == "qwen3"


def test_sharded_weights_are_refused(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "current", classmethod(lambda cls: cls(0, 2)))
    config = cut(make_config(quantization="nf4"), sharding="fsdp")
    with pytest.raises(ConfigError, match="fsdp does not support quantization"):
        open_policy(config, hyperparameters_of(config.method), torch.device("cpu"), torch.float32)
