"""A job whose engine, worker and API get SIGKILL, and a job on two devices, have the result of a plain one.

Two CPU processes replace the devices.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from examples.tiny_model import make_model
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.e2e.rollouts import evaluations
from tests.service.embedded import Up, engine_python, grpo_job, grpo_up, processes_of, write_rows
from tests.support.servers import is_ok, wait_until

pytestmark = pytest.mark.slow

STEPS = 6
TOLERANCE = 1e-6
CLOCKS = ("timing/", "perf/", "memory/", "system/", "step_time")
LAST_KILL = "checkpoint.published"
SETTINGS = {
    "GRPO_ENGINE_MODULE": "grpo_engine",
    "GRPO_WARM_ENGINE": "0",
    "GRPO_GPUS": "2",
    "GRPO_RUNTIME": json.dumps({"dtype": "float32", "num_threads": 2}),
    # once: the engine dies after step 3, and the worker when it has published step 4
    "GRPO_FAULT": f"step.trained:kill@3, {LAST_KILL}:kill@2",
    "GRPO_LEASE_SECONDS": "20",
    "GRPO_SELF_FENCE_SECONDS": "15",
    "GRPO_HEARTBEAT_SECONDS": "2",
    "GRPO_SWEEP_SECONDS": "1",
    "GRPO_RETRY_BACKOFF_SECONDS": "0.2",
}
"""A short lease: the job of a killed worker can be claimed soon."""


def pids_of(home: Path, *words: str) -> list[int]:
    """Process ids of this home whose command contains all words; engines are identified by their folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
            works_here = (folder / "cwd").readlink().is_relative_to(home.resolve())
        except OSError:  # it has ended, or belongs to another user
            continue
        here = works_here or int(folder.name) in processes_of(home)
        if here and all(word in command for word in words):
            found.append(int(folder.name))
    return found


def kill(home: Path, *words: str) -> None:
    """Send SIGKILL to the process once it runs."""
    wait_until(lambda: len(pids_of(home, *words)) == 1, seconds=120)
    os.kill(pids_of(home, *words)[0], signal.SIGKILL)


def ranks_of(home: Path) -> set[bytes]:
    """`RANK=…` of the ranks that work in this home."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(home.resolve()):
                found |= set((process / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue  # it has just ended, or belongs to another user
    return {variable for variable in found if variable.startswith(b"RANK=")}


@dataclass(frozen=True)
class Done:
    """A finished job."""

    job: dict[str, Any]
    metrics: list[dict[str, Any]]
    """Without timings."""
    adapter: bytes
    evaluations: dict[int, list[list[int]]]


@dataclass
class Service:
    """A running `grpo up` with an uploaded dataset."""

    up: Up
    client: Client
    file_id: str

    def submit(self, *, gpus: int = 1) -> str:
        body = grpo_job(self.file_id, steps=STEPS)
        body |= {"validation_file": self.file_id, "resources": {"gpus": gpus}}
        reinforcement = body["method"]["reinforcement"]
        reinforcement["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
        reinforcement["hyperparameters"] |= {
            "checkpoint_interval": 2,
            "learning_rate": 1e-4,
            "adam_epsilon": 1e-6,
            "max_completion_tokens": 8,
            "lora": {"rank": 4, "alpha": 8},
        }
        return str(self.client.create(JOBS, body)["id"])

    def end_of(self, job_id: str) -> Done:
        job = watch_job(self.client, job_id)
        assert job["status"] == "succeeded", job["failure"]
        rows = self.client.get(f"{JOBS}/{job_id}/metrics")["data"]
        metrics = [{key: row[key] for key in row if not key.startswith(CLOCKS)} for row in rows]
        folder = unpack(fetch_adapter(self.client, job_id, self.up.home / "downloads")[0])
        adapter = (folder / "adapter_model.safetensors").read_bytes()
        return Done(job, metrics, adapter, evaluations(self.client, job_id))

    def kill_api(self) -> None:
        kill(self.up.home, "-m", "service")
        wait_until(lambda: is_ok(f"{self.up.url}/readyz"), seconds=120)


@contextmanager
def running(folder: Path) -> Iterator[Service]:
    """No process is left at the end of the block."""
    make_model(folder / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    rows = write_rows(folder / "rows.jsonl")
    (folder / "marks").mkdir()
    python = engine_python(folder, f"marks/{LAST_KILL}")  # engines that are killed are real processes
    here = {"GRPO_FAULT_MARKS": str(folder / "marks"), "GRPO_ENGINE_PYTHON": str(python)}
    with grpo_up(folder / "home", **SETTINGS, **here) as up:
        key = Path(up.ready["key_file"]).read_text().strip()
        with Client(up.url, key) as client:
            yield Service(up, client, client.upload(rows)["id"])
        assert pids_of(up.home, "grpo_engine") == []
    assert processes_of(folder / "home") == []


@dataclass
class Runs:
    """The same job three times on one service; the kills happen during the first."""

    killed: Done
    whole: Done
    gang: Done
    """On two devices."""
    marks: set[str]
    """Fault points that were struck."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("kills")
    marks = folder / "marks"
    with running(folder) as service:
        job_id = service.submit()
        wait_until((marks / LAST_KILL).exists, 120, "the worker is killed")
        service.kill_api()
        killed = service.end_of(job_id)
        whole = service.end_of(service.submit())
        job_id = service.submit(gpus=2)
        wait_until(lambda: len(ranks_of(service.up.home)) == 2, 120, "both ranks work")
        gang = service.end_of(job_id)
    return Runs(killed, whole, gang, {path.name for path in marks.iterdir()})


def test_a_job_with_killed_engine_worker_and_api_equals_an_undisturbed_one(runs: Runs) -> None:
    assert runs.marks == {"step.trained", LAST_KILL}
    assert (runs.killed.job["attempt"], runs.whole.job["attempt"]) == (3, 1)
    assert [row["step"] for row in runs.killed.metrics] == list(range(1, STEPS + 1))
    assert runs.killed.metrics == runs.whole.metrics
    assert runs.killed.adapter == runs.whole.adapter


def test_a_job_on_two_devices_makes_the_same_adapter_as_on_one(runs: Runs) -> None:
    assert [done.job["resources"]["gpus"] for done in (runs.whole, runs.gang)] == [1, 2]
    assert runs.whole.evaluations == runs.gang.evaluations
    one, two = load(runs.whole.adapter), load(runs.gang.adapter)
    assert one.keys() == two.keys()
    assert any(bool(tensor.any()) for name, tensor in one.items() if "lora_B" in name)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= TOLERANCE
