"""`resources`: the requirements of a job, the machines that meet it, and the claims."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from grpo_engine.config.job import Runtime
from service.app import create_app
from service.jobs.store import claiming
from service.jobs.store.machines import SANDBOX, Machine
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    create,
    jsonl,
    num_jobs,
    reinforcement,
    report_machine,
    request,
    row,
    upload,
)
from tests.support.capable_model import GRADER as NUMERIC
from tests.support.capable_model import on_endpoint

pytestmark = pytest.mark.usefixtures("model")

TESTS = {"type": "code_tests", "tests": "{{item.tests}}"}
ROWS = jsonl(
    row(tests=[{"call": "f", "args": [1], "expected": 1}]),
    row("What is 3+3?", "6", tests=[{"call": "f", "args": [2], "expected": 2}]),
)


@pytest.fixture
def two_gpus(settings: Settings, api_key: str) -> Iterator[TestClient]:
    """The embedded service on a machine that has two."""
    settings = settings.model_copy(update={"gpus": 2, "gpu_memory_gb": 85})
    with TestClient(create_app(settings), headers={"authorization": f"Bearer {api_key}"}) as client:
        yield client


@pytest.fixture
def production(settings: Settings, api_key: str) -> Iterator[TestClient]:
    """A deployment whose workers are other machines."""
    settings = settings.model_copy(update={"mode": "production", "gpus": 0})
    with TestClient(create_app(settings), headers={"authorization": f"Bearer {api_key}"}) as client:
        yield client


def refused(client: TestClient, gpus: Any, memory: int = 0, **more: Any) -> list[tuple[str, str]]:
    """Place and message of each problem of a job that requires GPUs of this number and memory."""
    body = request(upload(client, ROWS), resources={"gpus": gpus, "gpu_memory_gb": memory}, **more)
    report = client.post("/v1/fine_tuning/jobs/validate", json=body).json()
    return [(problem["param"], problem["message"]) for problem in report["problems"]]


def test_response_and_row_of_a_job_have_its_gpus(two_gpus: TestClient, database: Database) -> None:
    file_id = upload(two_gpus)
    plain = create(two_gpus, file_id)
    both = create(two_gpus, file_id, resources={"gpus": 2, "gpu_memory_gb": 80})
    nothing = {"gpus": 0, "sampler_gpus": 0, "gpu_memory_gb": 0, "hosts": 0, "min_gpus": 0}
    assert plain["resources"] == nothing
    assert both["resources"] == nothing | {"gpus": 2, "gpu_memory_gb": 80}
    with database.reading() as session:
        rows = [session.get_one(Job, job["id"]) for job in (plain, both)]
        assert [(row.required_gpus, row.required_gpu_memory_gb) for row in rows] == [(0, 0), (2, 80)]


@on_sqlite
def test_gpus_that_only_sample_count_too(production: TestClient, database: Database) -> None:
    report_machine(database, "large", Machine(frozenset(), 4))
    asked = {"gpus": 3, "sampler_gpus": 1, "min_gpus": 2}
    job_id = create(production, upload(production), resources=asked)["id"]
    with database.reading() as session:
        assert session.get_one(Job, job_id).required_gpus == 3

    def places_and_reasons(method: Any = None, **resources: int) -> str:
        method = method or reinforcement(NUMERIC)
        body = request(upload(production), resources=resources, method=method)
        report = production.post("/v1/fine_tuning/jobs/validate", json=body).json()
        return "; ".join(f"{problem['param']}: {problem['message']}" for problem in report["problems"])

    assert "5 GPUs are requested" in places_and_reasons(gpus=3, sampler_gpus=2)
    assert "resources.sampler_gpus: needs resources.gpus" in places_and_reasons(sampler_gpus=1)
    uneven = places_and_reasons(gpus=2, sampler_gpus=1, hosts=2)
    assert "resources.hosts: must divide resources.sampler_gpus, 1" in uneven
    supervised = {"type": "supervised", "supervised": {}}
    found = places_and_reasons(supervised, gpus=1, sampler_gpus=1)
    assert "resources.sampler_gpus: must be 0: only a reinforcement job samples" in found


@on_sqlite
def test_a_queued_job_says_how_many_gpus_it_waits_for(two_gpus: TestClient, database: Database) -> None:
    report_machine(database)
    both = create(two_gpus, upload(two_gpus), resources={"gpus": 2})
    assert both["queue"] == {"position": 1, "reason": "waiting for a worker with 2 free GPUs"}


@on_sqlite
def test_more_gpus_than_the_machine_has_are_refused(two_gpus: TestClient, database: Database) -> None:
    body = request(upload(two_gpus), resources={"gpus": 3})
    answer = two_gpus.post("/v1/fine_tuning/jobs", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "resources.gpus", "gpus_unavailable")
    assert "3 GPUs are requested; the largest worker that can run the job has 2" in error["message"]
    assert num_jobs(database) == 0


def test_one_gpu_is_refused_if_no_worker_has_any(production: TestClient, database: Database) -> None:
    report_machine(database, "small", Machine(frozenset(), 0))
    message = "resources.gpus: 1 GPU is requested; the largest worker that can run the job has 0"
    assert refused(production, 1) == [("resources.gpus", message)]


def test_larger_gpus_than_any_worker_has_are_refused(production: TestClient, database: Database) -> None:
    report_machine(database, "many", Machine(frozenset(), 8, gpu_memory_gb=25))
    report_machine(database, "large", Machine(frozenset(), 1, gpu_memory_gb=85))
    assert refused(production, 1, 80) == []
    assert refused(production, 8, 24) == []
    ((place, message),) = refused(production, 2, 80)
    assert place == "resources.gpu_memory_gb"
    assert (
        "GPUs with 80 GB are requested; those of the largest worker that can run the job have 25 GB"
        in message
    )


@on_sqlite
@pytest.mark.parametrize("resources", [{"gpus": 65}, {"gpus": -1}, {"gpus": 1, "cpus": 2}, {"gpus": "many"}])
def test_other_resources_are_refused(two_gpus: TestClient, resources: dict[str, Any]) -> None:
    answer = two_gpus.post("/v1/fine_tuning/jobs", json=request(upload(two_gpus), resources=resources))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("resources.")


@on_sqlite
def test_a_job_that_trains_no_weights_runs_on_one(two_gpus: TestClient) -> None:
    method = {
        "type": "training_free",
        "training_free": {"grader": NUMERIC, "hyperparameters": on_endpoint()},
    }
    assert "resources.gpus" in [place for place, _ in refused(two_gpus, 2, method=method)]
    assert "resources.gpus" not in [place for place, _ in refused(two_gpus, 1, method=method)]


@on_sqlite
def test_a_limit_that_applies_to_each_gpu_causes_a_warning(
    two_gpus: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"default": {"url": "http://127.0.0.1:9", "models": ["large"]}}
    (tmp_path / "endpoints.json").write_text(json.dumps(known))
    monkeypatch.setenv("GRPO_ENDPOINTS", str(tmp_path / "endpoints.json"))
    judge = {"type": "score_model", "model": "large", "input": [{"role": "user", "content": "x"}]}
    found = []
    for gpus in (1, 2):
        method = reinforcement({**judge, "max_calls": 10})
        body = request(upload(two_gpus), resources={"gpus": gpus}, method=method)
        report = two_gpus.post("/v1/fine_tuning/jobs/validate", json=body).json()
        found.append([each["code"] for each in report["warnings"] if "gpu" in each["code"]])
    assert found == [[], ["limit_on_each_gpu"]]


def test_workers_elsewhere_decide_in_production(production: TestClient, database: Database) -> None:
    assert refused(production, 4) == []  # none is known: it may wait for one
    report_machine(database, "small", Machine(frozenset(), 1))
    assert [place for place, _ in refused(production, 4)] == ["resources.gpus"]
    assert refused(production, 1) == []
    report_machine(database, "large", Machine(frozenset(), 8))
    assert refused(production, 4) == []


def test_one_machine_must_have_all_that_a_job_needs(production: TestClient, database: Database) -> None:
    method = reinforcement(TESTS)
    report_machine(database, "large", Machine(frozenset(), 8))
    report_machine(database, "safe", Machine(frozenset({SANDBOX}), 1))
    ((place, message),) = refused(production, 4, method=method)
    assert (place, "the largest worker that can run the job has 1" in message) == ("resources.gpus", True)
    assert refused(production, 1, method=method) == []


def test_a_worker_claims_only_jobs_that_its_gpus_suffice_for(
    two_gpus: TestClient, database: Database
) -> None:
    file_id = upload(two_gpus)
    large = create(two_gpus, file_id, resources={"gpus": 2})["id"]
    small = create(two_gpus, file_id, resources={"gpus": 1})["id"]
    plain = create(two_gpus, file_id)["id"]

    roomy = create(two_gpus, file_id, resources={"gpus": 1, "gpu_memory_gb": 80})["id"]

    def claimed(gpus: int, memory: int = 0) -> str | None:
        with database.transaction() as session:
            given = {"gpus": gpus, "gpu_memory_gb": memory}
            job = claiming.claim(session, pool="default", worker="w", lease_seconds=60, **given)
            return job.id if job else None

    assert claimed(0) == plain
    assert claimed(0) is None
    assert claimed(1) == small
    assert claimed(1) is None
    assert claimed(8) == large
    assert claimed(8, 25) is None
    assert claimed(1, 85) == roomy


def test_gpus_are_counted_unless_they_are_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert Settings(home=tmp_path).gpus == 2
    monkeypatch.setenv("GRPO_GPUS", "1")
    assert Settings(home=tmp_path).gpus == 1


def test_the_runtime_of_engines_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(home=tmp_path).runtime == Runtime()  # type: ignore[call-arg]
    monkeypatch.setenv("GRPO_RUNTIME", '{"sampler": "torch", "dtype": "bfloat16"}')
    assert (Settings(home=tmp_path).runtime.sampler, Settings(home=tmp_path).runtime.dtype) == (
        "torch",
        "bfloat16",
    )
    monkeypatch.setenv("GRPO_RUNTIME", '{"smapler": "torch"}')
    with pytest.raises(ValueError, match="smapler"):
        Settings(home=tmp_path)
