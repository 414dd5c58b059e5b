"""Jobs on vLLM as engine processes: they learn as on torch, leave nothing behind and resume."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import make_rows, supervised_rows
from grpo_engine.config.job import RunConfig
from grpo_engine.run.build import build_loop
from tests.engine.conftest import write_rows
from tests.engine.processes import events, wait_for_step
from tests.support.forking import client as forking
from tests.support.forking.client import Forked

STEPS, KILLED_AT = 40, 12
EVEN = {"type": "format", "pattern": "^[02468]", "match": "search"}
"""A reward that a model of sums earns half of the time: the first digit is even."""
SUPERVISED = {"batch_size": 32, "n_steps": 160, "learning_rate": 3e-3, "lora": "full"}
GRPO = {
    "n_steps": STEPS,
    "prompts_per_step": 8,
    "group_size": 8,
    "max_completion_tokens": 6,
    "learning_rate": 1e-2,
    "beta": 0.0,
    "lora": {"rank": 8, "alpha": 16},
    "checkpoint_interval": 5,
}


@dataclass(frozen=True)
class Run:
    folder: Path
    events: list[dict[str, Any]]

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Of each step, in order; a step that was repeated counts once."""
        found = {e["step"]: e["metrics"] for e in self.events if e["type"].startswith("step_")}
        return [found[step] for step in range(1, STEPS + 1)]

    def reward(self, steps: slice) -> float:
        rewards = [metrics["reward"] for metrics in self.metrics[steps]]
        return sum(rewards) / len(rewards)


def job(model: Path, rows: Path, sampler: str, method: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "seed": 7,
            "model": {"name": "sums", "path": str(model)},
            "training_file": str(rows),
            "method": method,
            "runtime": {"sampler": sampler, "num_threads": 1, "sample_budget": 64},
        }
    )


@contextmanager
def engine(config: RunConfig, folder: Path) -> Iterator[Forked]:
    """The engine in a session of its own; whatever it prints is in engine.log, its files in tmp."""
    folder.mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(config.model_dump_json())
    arguments = ["grpo_engine", "--config", str(path), "--run-dir", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    with (folder / "engine.log").open("wb") as log:
        process = forking.start(arguments, environment, log.fileno(), own_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def session_of(process: Forked) -> list[str]:
    """Processes of the engine's session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[3] == str(process.pid) and fields[0] != "Z":
            found.append(folder.name)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, model_folder: Callable[[str], Path]) -> dict[str, Run]:
    """The same job on both samplers, from a model that has learned sums; on vLLM it is killed on its way."""
    folder = tmp_path_factory.mktemp("runs")
    train, _ = make_rows(200, 10)
    rows = write_rows(folder / "train.jsonl", train)
    taught = write_rows(folder / "taught.jsonl", supervised_rows(train))
    imitate = {"type": "supervised", "supervised": {"hyperparameters": SUPERVISED}}
    finished = list(
        build_loop(job(model_folder("qwen3"), taught, "torch", imitate), folder).run(lambda: False)
    )[-1]
    model = folder / finished.path  # type: ignore[attr-defined]
    grpo = {"type": "reinforcement", "reinforcement": {"grader": EVEN, "hyperparameters": GRPO}}
    on_vllm, on_torch = (job(model, rows, sampler, grpo) for sampler in ("vllm", "torch"))
    by_torch = [
        event.model_dump(mode="json") for event in build_loop(on_torch, folder / "torch").run(lambda: False)
    ]
    with engine(on_vllm, folder / "vllm") as killed:
        wait_for_step(folder / "vllm", KILLED_AT)
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        (folder / "left").write_text("\n".join(left_by(killed, folder / "vllm")))
    with engine(on_vllm, folder / "vllm") as resumed:
        assert resumed.wait() == 0, (folder / "vllm" / "engine.log").read_text()[-2000:]
    return {
        "vllm": Run(folder / "vllm", events(folder / "vllm")),
        "torch": Run(folder / "torch", by_torch),
    }


def left_by(process: Forked, folder: Path) -> list[str]:
    """Processes and temporary files."""
    return [*session_of(process), *(path.name for path in (folder / "tmp").iterdir())]


@pytest.mark.slow
def test_the_same_job_learns_the_same_on_both_samplers(runs: dict[str, Run]) -> None:
    """Over 40 seeds, either sampler begins at 0.57 ± 0.06 and levels off at 0.90 ± 0.03."""
    begun, ended = (
        {name: run.reward(steps) for name, run in runs.items()} for steps in (slice(0, 4), slice(-10, None))
    )
    assert max(begun.values()) < 0.75 < min(ended.values())
    assert abs(ended["vllm"] - ended["torch"]) < 0.15


def test_a_killed_engine_leaves_nothing_behind(runs: dict[str, Run]) -> None:
    assert (runs["vllm"].folder.parent / "left").read_text() == ""


def test_a_killed_job_continues_from_its_checkpoint(runs: dict[str, Run]) -> None:
    started = [event for event in runs["vllm"].events if event["type"] == "started"]
    assert [event["resumed_from_step"] for event in started] == [0, 10]
    assert [event["sampler"] for event in started] == ["vllm"] * 2
    assert runs["vllm"].events[-1]["type"] == "finished"


def test_the_mismatch_of_every_step_is_logged_and_is_rounding(runs: dict[str, Run]) -> None:
    trained = [metrics for metrics in runs["vllm"].metrics if "loss" in metrics]
    assert all(0 < each["sampling/sampling_logp_difference/max"] < 1e-3 for each in trained)
    assert all(abs(each["sampling/importance_sampling_ratio/mean"] - 1) < 1e-4 for each in trained)


def test_a_run_logs_little(runs: dict[str, Run]) -> None:
    lines = (runs["vllm"].folder / "engine.log").read_text().splitlines()
    of_libraries = [line for line in lines if line.strip() and not re.match(r"\d\d:\d\d:\d\d ", line)]
    assert len(of_libraries) <= 6
    assert not any("Traceback" in line or "Exception" in line for line in lines)
