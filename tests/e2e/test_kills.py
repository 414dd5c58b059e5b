"""A job survives SIGKILL of engine, worker and API while it trains, with a byte-identical result."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import make_rows, write_jsonl
from examples.tiny_model import make_model
from service.cli.http.client import JOBS, Client
from tests.service.embedded import Up, grpo_job, grpo_up, processes_of
from tests.support.servers import is_ok, wait_until

pytestmark = pytest.mark.slow

STEPS = 24
CLOCKS = ("timing/", "perf/", "memory/", "step_time")
SHORT_LEASE = {
    "GRPO_LEASE_SECONDS": "20",
    "GRPO_SELF_FENCE_SECONDS": "15",
    "GRPO_HEARTBEAT_SECONDS": "2",
    "GRPO_SWEEP_SECONDS": "1",
    "GRPO_RETRY_BACKOFF_SECONDS": "0.2",
}
"""Seconds until the job of a killed worker can be claimed."""


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


def run(
    folder: Path, disturb: Callable[[Up, Client, str], None], **more: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a GRPO job through `grpo up`. Returns the finished job and its metrics without timings."""
    make_model(folder / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    rows = write_jsonl(folder / "train.jsonl", make_rows(64, 1, left=range(10), right=range(10), seed=2)[0])
    with grpo_up(folder / "home", GRPO_ENGINE_MODULE="grpo_engine", **(SHORT_LEASE | more)) as up:
        key = Path(up.ready["key_file"]).read_text().strip()
        with Client(up.url, key) as client:
            body = grpo_job(client.upload(rows)["id"], steps=STEPS)
            body["method"]["reinforcement"]["grader"] = {
                "type": "format",
                "pattern": "[0-9]",
                "match": "search",
            }
            body["method"]["reinforcement"]["hyperparameters"] |= {
                "checkpoint_interval": 3,
                "learning_rate": 1e-3,
            }
            job_id = client.create(JOBS, body)["id"]
            disturb(up, client, job_id)
            wait_until(lambda: up.job(job_id)["status"] in ("succeeded", "failed"), seconds=240)
            metrics = client.get(f"{JOBS}/{job_id}/metrics")["data"]
            job = up.job(job_id)
        assert pids_of(up.home, "grpo_engine") == []
    assert processes_of(folder / "home") == []
    return job, [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in metrics]


def adapter_sha256(job: dict[str, Any]) -> str:
    (found,) = [artifact["sha256"] for artifact in job["artifacts"] if artifact["kind"] == "adapter"]
    return str(found)


def kill_everything_once(up: Up, client: Client, job_id: str) -> None:
    def at_step(step: int) -> None:
        wait_until(lambda: up.job(job_id)["progress"]["step"] >= step, seconds=120)

    at_step(4)
    kill(up.home, "grpo_engine")
    at_step(10)
    kill(up.home, "-m", "worker")
    kill(up.home, "service.app:create_app")
    wait_until(lambda: is_ok(f"{up.url}/readyz"), seconds=60)
    at_step(16)
    kill(up.home, "grpo_engine")


def test_a_job_with_killed_engine_worker_and_api_equals_an_undisturbed_one(tmp_path: Path) -> None:
    whole, expected = run(tmp_path / "whole", lambda up, client, job_id: None, GRPO_WARM_ENGINE="0")
    killed, found = run(tmp_path / "killed", kill_everything_once)
    assert (whole["status"], whole["attempt"]) == ("succeeded", 1)
    assert (killed["status"], killed["attempt"]) == ("succeeded", 4)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert found == expected
    assert adapter_sha256(killed) == adapter_sha256(whole)
