"""The real engine, started before its job: nothing but modules is different, and no number."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_engine.__main__ import main
from grpo_engine.config.job import RunConfig
from grpo_engine.run.prestart import leave_out_bitsandbytes
from tests.engine.processes import adapter_sha256, events, metric_lines, run_here
from tests.support.forking.client import engine_python

LOADS_AHEAD = """
import os, random, sys
before = random.getstate()
import grpo_engine.__main__
from grpo_engine.run.prestart import load_ahead
load_ahead()
import torch
print(torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")), random.getstate() == before)
loaded = set(sys.modules)
print("loaded", file=sys.stderr)
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
    assert done.stderr.startswith("loaded\n"), "it says something"
    touched, loaded_later = done.stdout.splitlines()
    assert touched == "False 1 True"
    assert loaded_later == "[]"


@pytest.mark.slow
def test_a_run_of_an_engine_started_ahead_has_the_bytes_of_a_fresh_ones(
    make_config: Callable[..., RunConfig], environment: dict[str, str], tmp_path: Path
) -> None:
    fresh, warm = tmp_path / "fresh", tmp_path / "warm"
    job = make_config(n_steps=4, beta=0.05, lora={"rank": 4, "dropout": 0.1})
    run_here(job, fresh)
    warm.mkdir()
    # relative paths: the job's own directory is entered first
    (tmp_path / "train.jsonl").rename(warm / "train.jsonl")
    (warm / "config.json").write_text(
        job.model_copy(update={"training_file": "./train.jsonl"}).model_dump_json()
    )
    arguments = ["--config", "config.json", "--run-dir", "."]
    line = json.dumps({"directory": str(warm), "arguments": arguments, "environment": {}}) + "\n"
    engine = [engine_python(), "-m", "grpo_engine", "--warm"]  # forked after all imports
    subprocess.run(engine, input=line.encode(), env=environment, check=True)
    assert len(metric_lines(warm)) == 4
    assert metric_lines(warm) == metric_lines(fresh)
    assert adapter_sha256(warm, 4) == adapter_sha256(fresh, 4)
    assert [each["type"] for each in events(warm)] == [each["type"] for each in events(fresh)]


@pytest.mark.parametrize(
    ("quantization", "stored", "is_hidden"),
    [(None, {}, True), ("nf4", {}, False), (None, {"bits": 4}, False)],
)
def test_bitsandbytes_is_hidden_from_jobs_that_do_not_need_it(
    make_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    quantization: str | None,
    stored: dict[str, int],
    is_hidden: bool,
) -> None:
    config = make_config(quantization=quantization)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": stored} if stored else {}))
    source = config.model.model_copy(update={"path": str(tmp_path)})
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    leave_out_bitsandbytes(config.model_copy(update={"model": source}))
    assert (find_spec("bitsandbytes") is None) is is_hidden


def test_a_loaded_bitsandbytes_stays(make_config: Callable[..., RunConfig]) -> None:
    leave_out_bitsandbytes(make_config())
    assert find_spec("bitsandbytes") is not None


def test_without_a_job_it_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(SystemExit) as ended:
            main(["--warm"])
    assert ended.value.code == 0
    assert capfd.readouterr() == ("", "")
