"""Every kind of reinforcement job through HTTP, on a small real model that it improves.

One `grpo up`; a supervised job makes the initial model, which a reinforcement job improves for each task.
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
from tests.e2e.families import SUPERVISED_STEPS, TASKS
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
    settings = {"GRPO_ENGINE_MODULE": "grpo_engine", "GRPO_WARM_ENGINE": "0"}
    with ChatServer(judged) as judge:
        endpoints.write_text(json.dumps({"judge": {"url": judge.url, "api_key": "judge-key"}}))
        with (
            grpo_up(home, **settings, GRPO_ENDPOINTS=str(endpoints)) as up,
            Client(up.url, Path(up.ready["key_file"]).read_text().strip()) as client,
        ):
            yield client


def succeed(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    job = watch_job(client, client.create(JOBS, body)["id"])
    assert job["status"] == "succeeded", job["failure"]
    return job


@pytest.fixture(scope="module")
def pupil(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The initial model of all tasks, which a supervised job has trained."""
    rows = [row for task in TASKS.values() for row in task.imitated]
    path = write_jsonl(tmp_path_factory.mktemp("pupil") / "imitated.jsonl", rows)
    hyperparameters = {
        "n_steps": SUPERVISED_STEPS,
        "batch_size": 32,
        "learning_rate": 5e-3,
        "lr_schedule": "linear",
        "lora": "full",
        "max_tokens": 256,
        "checkpoint_interval": SUPERVISED_STEPS,
    }
    body = {
        "model": "tiny",
        "seed": 1,
        "training_file": client.upload(path)["id"],
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
    }
    return str(succeed(client, body)["fine_tuned_model"])


@pytest.mark.parametrize("name", TASKS)
def test_a_job_of_every_kind_improves_on_its_own_task(
    client: Client, pupil: str, name: str, tmp_path: Path
) -> None:
    task = TASKS[name]
    file_id = client.upload(write_jsonl(tmp_path / "rows.jsonl", task.rows))["id"]
    body = {"model": pupil, "seed": 1, "training_file": file_id, "validation_file": file_id}
    job = succeed(client, {**body, "method": task.method})
    before, after = (job["eval"][key]["reward"] for key in ("baseline", "last"))
    assert after - before >= 0.2, f"{before} → {after}"
    assert job["eval"]["verdict"]["text"].startswith("improved by ")
