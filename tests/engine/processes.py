"""Engines as processes and in this one, their events, and what two runs must have in common."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_engine.__main__ import run
from grpo_engine.config.job import RunConfig
from tests.support.forking import client as forking

CLOCKS = ("timing/", "perf/", "memory/", "system/", "step_time")
PATIENCE_SECONDS = 300
"""On a machine with a load of 15, two ranks took more than a minute to start."""


class Crash(BaseException):
    """Ends a run in this process as suddenly as a kill: nothing more is saved or written."""


def start(config: Path, run_dir: Path) -> forking.Forked:
    arguments = ["grpo_engine", "--config", str(config), "--run-dir", str(run_dir)]
    with open(os.devnull, "w") as nothing:
        return forking.start(arguments, {**os.environ, "OMP_NUM_THREADS": "1"}, nothing.fileno())


def run_here(job: RunConfig, run_dir: Path, should_stop: Callable[[], bool] = lambda: False) -> None:
    """In this process, which saves the start of an engine."""
    run_dir.mkdir(exist_ok=True)
    assert run(job, run_dir, should_stop) == 0


def crash_here(job: RunConfig, run_dir: Path, after: int) -> None:
    """In this process, until a step has ended; its checkpoint may be older."""

    def crash() -> bool:
        if last_step(run_dir) >= after:
            raise Crash
        return False

    try:
        run_here(job, run_dir, crash)
    except Crash:
        return
    raise AssertionError(f"step {after} never came")


def kill_after(config: Path, run_dir: Path, step: int) -> None:
    engine = start(config, run_dir)
    wait_for_step(run_dir, step)
    engine.kill()
    assert engine.wait() == -signal.SIGKILL


def events(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def last_step(run_dir: Path) -> int:
    return max((e["step"] for e in events(run_dir) if e["type"] == "step_finished"), default=0)


def wait_for_step(run_dir: Path, step: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while last_step(run_dir) < step:
        assert time.monotonic() < deadline, f"step {step} never came"
        time.sleep(0.01)


def metric_lines(run_dir: Path) -> list[tuple[int, dict[str, float]]]:
    return [
        (e["step"], {k: v for k, v in e["metrics"].items() if not k.startswith(CLOCKS)})
        for e in events(run_dir)
        if e["type"] in ("step_finished", "step_skipped")
    ]


def adapter_sha256(run_dir: Path, step: int) -> str:
    path = run_dir / "checkpoints" / f"step-{step:08d}" / "adapter" / "adapter_model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()
