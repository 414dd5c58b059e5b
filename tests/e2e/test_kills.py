"""A job survives SIGKILL of engine, worker and API while it trains, with a byte-identical result."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import make_rows, write_jsonl
from examples.tiny_model import make_model
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.service.embedded import Up, grpo_job, grpo_up, processes_of
from tests.support.servers import is_ok, wait_until

pytestmark = pytest.mark.slow

STEPS = 9
CLOCKS = ("timing/", "perf/", "memory/", "step_time")
SETTINGS = {
    "GRPO_ENGINE_MODULE": "grpo_engine",
    "GRPO_WARM_ENGINE": "0",
    # once: the engine dies after step 5, and the worker when it has published step 6
    "GRPO_FAULT": "step.trained:kill@5, checkpoint.published:kill@2",
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
    wait_until(lambda: len(pids_of(home, *words)) == 1, seconds=60)
    os.kill(pids_of(home, *words)[0], signal.SIGKILL)


@dataclass
class Service:
    """A running `grpo up` with an uploaded dataset."""

    up: Up
    client: Client
    file_id: str

    def submit(self) -> str:
        body = grpo_job(self.file_id, steps=STEPS)
        reinforcement = body["method"]["reinforcement"]
        reinforcement["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
        reinforcement["hyperparameters"] |= {"checkpoint_interval": 3, "learning_rate": 1e-3}
        return str(self.client.create(JOBS, body)["id"])

    def end_of(self, job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The finished job and its metrics without timings."""
        job = watch_job(self.client, job_id)
        metrics = self.client.get(f"{JOBS}/{job_id}/metrics")["data"]
        return job, [
            {key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in metrics
        ]

    def kill_api(self) -> None:
        kill(self.up.home, "service.app:create_app")
        wait_until(lambda: is_ok(f"{self.up.url}/readyz"), seconds=60)


@contextmanager
def running(folder: Path) -> Iterator[Service]:
    """No process is left at the end of the block."""
    make_model(folder / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    rows = write_jsonl(folder / "train.jsonl", make_rows(64, 1, left=range(10), right=range(10), seed=2)[0])
    (folder / "marks").mkdir()
    with grpo_up(folder / "home", **SETTINGS, GRPO_FAULT_MARKS=str(folder / "marks")) as up:
        key = Path(up.ready["key_file"]).read_text().strip()
        with Client(up.url, key) as client:
            yield Service(up, client, client.upload(rows)["id"])
        assert pids_of(up.home, "grpo_engine") == []
    assert processes_of(folder / "home") == []


def adapter_sha256(job: dict[str, Any]) -> str:
    (found,) = [artifact["sha256"] for artifact in job["artifacts"] if artifact["kind"] == "adapter"]
    return str(found)


def test_a_job_with_killed_engine_worker_and_api_equals_an_undisturbed_one(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        job_id = service.submit()
        wait_until((tmp_path / "marks" / "checkpoint.published").exists, 120, "the worker is killed")
        service.kill_api()
        killed, found = service.end_of(job_id)
        assert {path.name for path in (tmp_path / "marks").iterdir()} == {
            "step.trained",
            "checkpoint.published",
        }
        whole, expected = service.end_of(service.submit())
    assert (whole["status"], whole["attempt"]) == ("succeeded", 1)
    assert (killed["status"], killed["attempt"]) == ("succeeded", 3)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert found == expected
    assert adapter_sha256(killed) == adapter_sha256(whole)
