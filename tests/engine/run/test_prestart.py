"""The real engine, started before its job: nothing but modules is different, and no number."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.config.job import RunConfig
from tests.engine.training.test_resume import events, metric_lines

LOADS_AHEAD = """
import os, random, sys
before = random.getstate()
from grpo_engine.run.prestart import load_ahead
load_ahead()
import torch
print(torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")), random.getstate() == before)
loaded = set(sys.modules)
from pathlib import Path
from grpo_engine.run.build import build_loop
from grpo_engine.config.job import RunConfig
config = RunConfig.model_validate_json(Path(sys.argv[1]).read_bytes())
list(build_loop(config, Path(sys.argv[2])).run(lambda: False))
print([name for name in sys.modules if name.startswith(("grpo_engine", "peft")) and name not in loaded])
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_loading_ahead_loads_all_of_the_engine_and_touches_nothing_else(
    make_config: Callable[..., RunConfig], environment: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(make_config(n_steps=1).model_dump_json())
    command = [sys.executable, "-c", LOADS_AHEAD, str(config), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    touched, loaded_later = done.stdout.splitlines()
    assert touched == "False 1 True"
    assert loaded_later == "[]"


@pytest.mark.slow
def test_a_run_of_an_engine_started_ahead_has_the_bytes_of_a_fresh_ones(
    make_config: Callable[..., RunConfig], environment: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(make_config(n_steps=4, beta=0.05, lora={"rank": 4, "dropout": 0.1}).model_dump_json())
    engine = [sys.executable, "-m", "grpo_engine"]
    for name in ("fresh", "warm"):
        (tmp_path / name).mkdir()
    arguments = ["--config", str(config), "--run-dir"]
    subprocess.run([*engine, *arguments, str(tmp_path / "fresh")], env=environment, check=True)
    # a relative run directory: the job's own directory is entered first
    job = json.dumps({"directory": str(tmp_path / "warm"), "arguments": [*arguments, "."]}) + "\n"
    subprocess.run([*engine, "--warm"], input=job.encode(), env=environment, check=True)
    assert len(metric_lines(tmp_path / "warm")) == 4
    assert metric_lines(tmp_path / "warm") == metric_lines(tmp_path / "fresh")
    assert adapter(tmp_path / "warm") == adapter(tmp_path / "fresh")
    assert [each["type"] for each in events(tmp_path / "warm")] == [
        each["type"] for each in events(tmp_path / "fresh")
    ]


def adapter(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "step-00000004" / "adapter" / "adapter_model.safetensors").read_bytes()


def test_without_a_job_it_ends_quietly(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "grpo_engine", "--warm"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
