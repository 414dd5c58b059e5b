"""Exact resume: a run that ended suddenly equals one that did not, bit for bit."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.run.build import build_loop
from tests.engine.conftest import largest_difference, parameters_of, trained
from tests.engine.processes import adapter_sha256, crash_here, events, kill_after, metric_lines, run_here

STEPS = 20


@pytest.mark.slow
def test_a_run_that_ends_suddenly_at_steps_7_and_13_equals_an_undisturbed_one(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """First by SIGKILL."""
    config, broken = tmp_path / "config.json", tmp_path / "broken"
    job = make_config(n_steps=STEPS, checkpoint_interval=3, beta=0.05, lora={"rank": 4, "dropout": 0.1})
    config.write_text(job.model_dump_json())
    run_here(job, tmp_path / "whole")
    kill_after(config, broken, 7)
    crash_here(job, broken, 13)
    run_here(job, broken)
    whole, found = metric_lines(tmp_path / "whole"), metric_lines(broken)
    assert [step for step, _ in found] == list(range(1, STEPS + 1))
    assert found == whole
    assert adapter_sha256(broken, STEPS) == adapter_sha256(tmp_path / "whole", STEPS)
    sequences = [event["sequence"] for event in events(broken)]
    assert sequences == list(range(1, len(sequences) + 1))
    assert sum(event["type"] == "started" for event in events(broken)) == 3


def test_resuming_without_the_optimisers_moments_would_differ(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=4, learning_rate=1e-2)
    whole = trained(config, tmp_path / "whole")
    for name in ("exact", "forgetful"):
        trainer = build_loop(config, tmp_path / name)
        list(trainer.run(lambda trainer=trainer: trainer.state.step == 2))  # type: ignore[misc]
    forget_moments(tmp_path / "forgetful" / "checkpoints" / "step-00000002", config)
    exact = trained(config, tmp_path / "exact")
    forgetful = trained(config, tmp_path / "forgetful")
    assert largest_difference(parameters_of(whole), parameters_of(exact)) == 0.0
    assert largest_difference(parameters_of(whole), parameters_of(forgetful)) > 1e-5


def forget_moments(folder: Path, config: RunConfig) -> None:
    """A checkpoint without Adam's moments whose manifest is valid."""
    path = folder / "optimizer.safetensors"
    save_file({name: tensor * 0 for name, tensor in load_file(path).items()}, path)
    content = json.loads((folder / manifest.MANIFEST).read_text())
    content["files"]["optimizer.safetensors"] = {
        "size": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (folder / manifest.MANIFEST).write_text(json.dumps(content))


def test_another_seed_gives_another_run(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = make_config()
    left = trained(config, tmp_path / "a")
    right = trained(config.model_copy(update={"seed": 8}), tmp_path / "b")
    assert largest_difference(parameters_of(left), parameters_of(right)) > 1e-5
