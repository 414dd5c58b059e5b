"""A small job through the production path: uvicorn, PostgreSQL, Redis and a real Celery worker."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.arithmetic import make_rows, write_jsonl
from examples.decoding import answers, greedy_tokens
from examples.tiny_model import make_model
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.e2e.production import SERVICES, Production, empty_database, production
from tests.e2e.rollouts import evaluations
from tests.service.embedded import ROOT, grpo_job, processes_of, write_rows
from tests.support.servers import Postgres, Redis, wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny", hidden=32, layers=1)


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, model: Path, postgres_server: Postgres, redis_server: Redis
) -> Iterator[Production]:
    """A deployment with the fake engine."""
    home = tmp_path_factory.mktemp("production") / "home"
    with (
        empty_database(postgres_server, "production_fake") as url,
        production(home, model, url, redis_server) as running,
    ):
        yield running


@pytest.fixture
def client(deployment: Production) -> Iterator[Client]:
    with deployment.client() as client:
        yield client


def submit(client: Client, rows: Path, **more: Any) -> str:
    return str(client.create(JOBS, grpo_job(client.upload(rows)["id"], **more))["id"])


def test_the_deployment_is_ready_with_database_and_broker(deployment: Production) -> None:
    checks = {"database": "ok", "broker": "ok", "storage": "ok", "disk": "ok"}
    ready = deployment.ready()
    assert ready["checks"].pop("helpers") in ("ok", "none")
    assert ready == {"status": "ready", "checks": checks}


def test_the_health_check_finds_the_worker_alive(deployment: Production) -> None:
    _, *arguments = SERVICES["worker"]["healthcheck"]["test"][1:]
    wait_until(lambda: run_python(deployment, *arguments).returncode == 0, 60)
    assert run_python(deployment, *arguments, "--seconds", "0").returncode == 1


def test_the_machine_is_announced_without_warnings(deployment: Production) -> None:
    def exposed() -> str:
        return httpx.get(f"{deployment.url}/metrics").text

    wait_until(lambda: 'grpo_worker_hosts{pool="default"} 1.0' in exposed(), 60)
    assert not [
        line for line in exposed().splitlines() if line.startswith("grpo_warning") and line[-3:] != "0.0"
    ]


def run_python(deployment: Production, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=deployment.environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_job_runs_through_celery_and_its_adapter_can_be_downloaded(client: Client, tmp_path: Path) -> None:
    job = watch_job(client, submit(client, write_rows(tmp_path / "rows.jsonl")))
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
    wait_until(lambda: client.get(f"{JOBS}/{job_id}")["progress"]["step"] > 5, 30)
    assert deployment.stop("worker") == 0
    job = client.get(f"{JOBS}/{job_id}")
    assert job["status"] == "queued"
    assert job["progress"]["step"] > 5
    deployment.start("worker")
    job = watch_job(client, job_id)
    assert (job["status"], job["attempt"]) == ("succeeded", 2)
    found = client.get(f"{JOBS}/{job_id}/metrics", after_step=0)["data"]
    assert [row["step"] for row in found] == list(range(1, 61))


def test_a_stopped_deployment_leaves_no_process(
    tmp_path: Path, model: Path, postgres_server: Postgres, redis_server: Redis
) -> None:
    with (
        empty_database(postgres_server, "production_end") as url,
        production(tmp_path / "home", model, url, redis_server) as deployment,
        deployment.client() as client,
    ):
        rows = write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.1})
        job_id = submit(client, rows, steps=600)
        wait_until(lambda: client.get(f"{JOBS}/{job_id}")["progress"]["step"] > 0, 30)
    assert processes_of(tmp_path / "home") == []


def talk(client: Client, model: str, row: Mapping[str, Any]) -> str:
    """The greedy answer of the worker's sampler."""
    body = {"model": model, "messages": row["messages"], "temperature": 0, "max_tokens": 5}
    return str(client.post("/v1/chat/completions", body)["choices"][0]["message"]["content"])


@pytest.mark.slow
def test_an_adapter_trained_in_production_decodes_and_chats_as_evaluated(
    tmp_path: Path, model: Path, postgres_server: Postgres, redis_server: Redis
) -> None:
    train, held_out = make_rows(64, 8, left=range(10), right=range(10), seed=4)
    with (
        empty_database(postgres_server, "production_real") as url,
        production(
            tmp_path / "home",
            model,
            url,
            redis_server,
            GRPO_ENGINE_MODULE="grpo_engine",
            GRPO_WARM_ENGINE="0",
        ) as deployment,
        deployment.client() as client,
    ):
        body = grpo_job(client.upload(write_jsonl(tmp_path / "train.jsonl", train))["id"], steps=10)
        body["validation_file"] = client.upload(write_jsonl(tmp_path / "held_out.jsonl", held_out))["id"]
        reinforcement = body["method"]["reinforcement"]
        reinforcement["hyperparameters"] |= {"max_completion_tokens": 5, "learning_rate": 0.02}
        # a random model is never right, but the lengths of its answers differ within a group
        length = {"type": "length", "mode": "linear", "unit": "characters", "target": 0, "maximum": 6}
        reinforcement["grader"] = {"type": "multi", "graders": {"l": length}, "calculate_output": "0 - l"}
        job = watch_job(client, client.create(JOBS, body)["id"])
        assert job["status"] == "succeeded", job["failure"]
        adapter = unpack(fetch_adapter(client, job["id"], tmp_path)[0])
        evaluated = evaluations(client, job["id"])
        replies = [talk(client, name, held_out[0]) for name in (job["model"], job["fine_tuned_model"])]
    assert replies == [
        answers(model, held_out[:1], max_tokens=5)[0],
        answers(model, held_out[:1], adapter=adapter, max_tokens=5)[0],
    ]
    assert sorted(evaluated) == list(range(11))
    assert greedy_tokens(model, held_out, max_tokens=5) == evaluated[0]
    assert greedy_tokens(model, held_out, adapter=adapter, max_tokens=5) == evaluated[10]
    assert evaluated[10] != evaluated[0]
