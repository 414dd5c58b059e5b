"""Every kind of reinforcement job through HTTP, on a small real model that it improves.

One `grpo up`; for each task a supervised job makes the initial model and a reinforcement job improves it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import write_jsonl
from examples.tiny_model import make_model
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.e2e.families import TASKS, Task
from tests.service.embedded import grpo_up
from tests.support.chat_server import ChatServer

pytestmark = pytest.mark.slow


def judged(request: dict[str, Any]) -> str:
    """The scripted judge checks `3+4=7` in its last message."""
    found = re.fullmatch(r"(\d+)\+(\d+)=(\d+)", request["messages"][-1]["content"].strip())
    right = bool(found) and int(found[1]) + int(found[2]) == int(found[3])  # type: ignore[index]
    return json.dumps({"score": float(right)})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("families") / "home"
    make_model(home / "models" / "tiny", hidden=64, layers=2, seed=1)
    endpoints = home / "endpoints.json"
    with ChatServer(judged) as judge:
        endpoints.write_text(json.dumps({"judge": {"url": judge.url, "api_key": "judge-key"}}))
        with (
            grpo_up(home, GRPO_ENGINE_MODULE="grpo_engine", GRPO_ENDPOINTS=str(endpoints)) as up,
            Client(up.url, Path(up.ready["key_file"]).read_text().strip()) as client,
        ):
            yield client


def succeed(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    job = watch_job(client, client.create(JOBS, body)["id"])
    assert job["status"] == "succeeded", job["failure"]
    return job


def pupil(client: Client, task: Task, folder: Path) -> str:
    """Train the initial model of a task."""
    hyperparameters = {
        "n_steps": task.supervised_steps,
        "batch_size": 32,
        "learning_rate": 3e-3,
        "lr_schedule": "linear",
        "lora": "full",
        "max_tokens": 256,
    }
    body = {
        "model": "tiny",
        "seed": 1,
        "training_file": client.upload(write_jsonl(folder / "imitated.jsonl", task.imitated))["id"],
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
    }
    return str(succeed(client, body)["fine_tuned_model"])


@pytest.mark.parametrize("name", TASKS)
def test_a_job_of_every_kind_improves_on_its_own_task(client: Client, name: str, tmp_path: Path) -> None:
    task = TASKS[name]()
    body = {
        "model": pupil(client, task, tmp_path),
        "seed": 1,
        "training_file": client.upload(write_jsonl(tmp_path / "rows.jsonl", task.rows))["id"],
        "validation_file": client.upload(write_jsonl(tmp_path / "held_out.jsonl", task.held_out))["id"],
        "method": task.method,
    }
    job = succeed(client, body)
    before, after = (job["eval"][key]["reward"] for key in ("baseline", "last"))
    assert 100 * (after - before) >= task.points, f"{before} → {after}"
    assert job["eval"]["verdict"]["text"].startswith("improved by ")
