"""Exact resume: a run that was killed equals one that was not, bit for bit."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from grpo_engine.__main__ import run
from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.run.build import build_loop
from tests.engine.conftest import largest_difference, parameters_of, trained

CLOCKS = ("timing/", "perf/", "memory/", "step_time")
STEPS = 20


def start(config: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "grpo_engine", "--config", str(config), "--run-dir", str(run_dir)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def events(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for_step(run_dir: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while not any(e["type"] == "step_finished" and e["step"] >= step for e in events(run_dir)):
        assert time.monotonic() < deadline, f"step {step} never came"
        time.sleep(0.005)


def run_to_end(config: Path, run_dir: Path, kill_after: tuple[int, ...] = ()) -> None:
    for step in kill_after:
        engine = start(config, run_dir)
        wait_for_step(run_dir, step)
        engine.kill()
        assert engine.wait() == -signal.SIGKILL
    assert start(config, run_dir).wait() == 0


def run_undisturbed(config: Path, run_dir: Path) -> None:
    """In this process, which saves the start of an engine."""
    run_dir.mkdir()
    assert run(RunConfig.model_validate_json(config.read_bytes()), run_dir, lambda: False) == 0


def metric_lines(run_dir: Path) -> list[tuple[int, dict[str, float]]]:
    return [
        (e["step"], {k: v for k, v in e["metrics"].items() if not k.startswith(CLOCKS)})
        for e in events(run_dir)
        if e["type"] in ("step_finished", "step_skipped")
    ]


def adapter_sha256(run_dir: Path) -> str:
    path = run_dir / "checkpoints" / f"step-{STEPS:08d}" / "adapter" / "adapter_model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_run_killed_at_steps_7_and_13_equals_an_undisturbed_one(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    job = make_config(n_steps=STEPS, checkpoint_interval=3, beta=0.05, lora={"rank": 4, "dropout": 0.1})
    config.write_text(job.model_dump_json())
    run_undisturbed(config, tmp_path / "whole")
    run_to_end(config, tmp_path / "killed", kill_after=(7, 13))
    whole, killed = metric_lines(tmp_path / "whole"), metric_lines(tmp_path / "killed")
    assert [step for step, _ in killed] == list(range(1, STEPS + 1))
    assert killed == whole
    assert adapter_sha256(tmp_path / "killed") == adapter_sha256(tmp_path / "whole")
    sequences = [event["sequence"] for event in events(tmp_path / "killed")]
    assert sequences == list(range(1, len(sequences) + 1))
    assert sum(event["type"] == "started" for event in events(tmp_path / "killed")) == 3


@pytest.mark.slow
def test_sigterm_writes_a_checkpoint_and_stops_with_status_0(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(make_config(n_steps=500, checkpoint_interval=1000).model_dump_json())
    engine = start(config, tmp_path / "run")
    wait_for_step(tmp_path / "run", 2)
    engine.terminate()
    assert engine.wait(timeout=60) == 0
    last = events(tmp_path / "run")[-1]
    assert last["type"] == "stopped"
    assert (tmp_path / "run" / "checkpoints" / f"step-{last['step']:08d}" / "manifest.json").exists()


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
