"""A small job through the production path: uvicorn, PostgreSQL, Redis and a real Celery worker."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import make_rows, write_jsonl
from examples.decoding import answers, greedy_tokens
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.e2e.production.deployment import SERVICES, Production
from tests.e2e.rollouts import evaluations
from tests.service.embedded import ROOT, grpo_job, write_rows
from tests.support.servers import wait_until

FAKE = {"step_seconds": 0.01}


def submit(client: Client, rows: Path, **more: Any) -> str:
    return str(client.create(JOBS, grpo_job(client.upload(rows)["id"], **more))["id"])


def test_the_deployment_is_ready_with_database_and_broker(deployment: Production) -> None:
    names = ("database", "broker", "storage", "disk", "models", "helpers")
    # a worker that another test has killed leaves helpers without a heartbeat for a while
    wait_until(lambda: deployment.ready() == {"status": "ready", "checks": dict.fromkeys(names, "ok")}, 120)


def test_the_health_check_finds_the_worker_alive(deployment: Production) -> None:
    _, *arguments = SERVICES["worker"]["healthcheck"]["test"][1:]
    wait_until(lambda: run_python(deployment, *arguments).returncode == 0, 120)
    assert run_python(deployment, *arguments, "--seconds", "0").returncode == 1


def test_the_machine_is_announced_without_warnings(first_metrics: str) -> None:
    lines = first_metrics.splitlines()
    assert [line for line in lines if line.startswith("grpo_warning") and line[-3:] != "0.0"] == []


def run_python(deployment: Production, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=deployment.environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_job_runs_through_celery_and_its_adapter_can_be_downloaded(client: Client, tmp_path: Path) -> None:
    job = watch_job(client, submit(client, write_rows(tmp_path / "rows.jsonl", faults=FAKE)))
    assert (job["status"], job["attempt"], job["progress"]["step"]) == ("succeeded", 1, 10)
    rows = client.get(f"{JOBS}/{job['id']}/metrics", after_step=0)["data"]
    assert [row["step"] for row in rows] == list(range(1, 11))
    archive, sha256 = fetch_adapter(client, job["id"], tmp_path)
    (adapter,) = (each for each in job["artifacts"] if each["kind"] == "adapter")
    assert adapter["sha256"] == sha256
    assert adapter["bytes"] == archive.stat().st_size
    assert (unpack(archive) / "adapter_config.json").is_file()


def test_the_next_worker_finishes_the_job_of_a_stopped_celery_worker(
    deployment: Production, client: Client, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.1})
    job_id = submit(client, rows, steps=60)
    wait_until(lambda: client.get(f"{JOBS}/{job_id}")["progress"]["step"] > 5, 120)
    assert deployment.stop("worker") == 0
    job = client.get(f"{JOBS}/{job_id}")
    assert job["status"] == "queued"
    assert job["progress"]["step"] > 5
    deployment.start("worker")
    job = watch_job(client, job_id)
    assert (job["status"], job["attempt"]) == ("succeeded", 2)
    found = client.get(f"{JOBS}/{job_id}/metrics", after_step=0)["data"]
    assert [row["step"] for row in found] == list(range(1, 61))


def talk(client: Client, model: str, row: Mapping[str, Any]) -> str:
    """The greedy answer of the worker's sampler."""
    body = {"model": model, "messages": row["messages"], "temperature": 0, "max_tokens": 5}
    return str(client.post("/v1/chat/completions", body)["choices"][0]["message"]["content"])


@pytest.mark.slow
def test_an_adapter_trained_in_production_decodes_and_chats_as_evaluated(
    model: Path, client: Client, tmp_path: Path
) -> None:
    train, held_out = make_rows(64, 8, left=range(10), right=range(10), seed=4)
    body = grpo_job(client.upload(write_jsonl(tmp_path / "train.jsonl", train))["id"], steps=4)
    body["validation_file"] = client.upload(write_jsonl(tmp_path / "held_out.jsonl", held_out))["id"]
    reinforcement = body["method"]["reinforcement"]
    reinforcement["hyperparameters"] |= {"max_completion_tokens": 5, "learning_rate": 0.05}
    # a random model is never right, but the lengths of its answers differ within a group
    length = {"type": "length", "mode": "linear", "unit": "characters", "target": 0, "maximum": 6}
    reinforcement["grader"] = {"type": "multi", "graders": {"l": length}, "calculate_output": "0 - l"}
    job = watch_job(client, client.create(JOBS, body)["id"])
    assert job["status"] == "succeeded", job["failure"]
    adapter = unpack(fetch_adapter(client, job["id"], tmp_path)[0])
    evaluated = evaluations(client, job["id"])
    reply = talk(client, job["fine_tuned_model"], held_out[0])
    assert reply == answers(model, held_out[:1], adapter=adapter, max_tokens=5)[0]
    assert sorted(evaluated) == list(range(5))
    assert greedy_tokens(model, held_out, max_tokens=5) == evaluated[0]
    assert greedy_tokens(model, held_out, adapter=adapter, max_tokens=5) == evaluated[4]
    assert evaluated[4] != evaluated[0]
