"""A training-free job over HTTP: one run to its end with a scripted endpoint, and what is refused before."""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

from examples.arithmetic import write_jsonl
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from service.jobs.model.openai_terms import from_openai_terms, in_openai_terms
from service.settings import Settings
from tests.service.embedded import Up, grpo_up
from tests.service.job_samples import METHOD, MODEL, create, jsonl, make_model, request, upload
from tests.support.capable_model import (
    GRADER,
    KEY,
    LESSON,
    CapableModel,
    on_endpoint,
    write_endpoints,
    zorb_rows,
)
from tests.support.chat_server import ChatServer


def training_free(**hyperparameters: Any) -> dict[str, Any]:
    settings = {"grader": GRADER, "hyperparameters": on_endpoint(**hyperparameters)}
    return {"type": "training_free", "training_free": settings}


def improve(client: Client, folder: Path, model: str = MODEL) -> dict[str, Any]:
    """The job at its end: eight rows, two epochs, twelve held-out rows. The endpoint is `helper`."""
    train = client.upload(write_jsonl(folder / "train.jsonl", zorb_rows(8)))["id"]
    held_out = client.upload(write_jsonl(folder / "held_out.jsonl", zorb_rows(12, first=20)))["id"]
    body = {"model": model, "training_file": train, "validation_file": held_out, "seed": 5}
    return watch_job(client, client.create(JOBS, {**body, "method": training_free()})["id"])


@dataclass(frozen=True)
class Done:
    up: Up
    key: str
    client: Client
    job: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """A finished job on a catalogue model without any weights."""
    folder = tmp_path_factory.mktemp("training-free")
    make_model(folder / "home")
    with ChatServer(CapableModel()) as server:
        endpoints = write_endpoints(folder / "endpoints.json", server.url)
        settings = {"GRPO_ENGINE_MODULE": "grpo_engine", "GRPO_WARM_ENGINE": "0"}
        with grpo_up(folder / "home", **settings, GRPO_ENDPOINTS=str(endpoints)) as up:
            key = Path(up.ready["key_file"]).read_text().strip()
            with Client(up.url, key) as client:
                yield Done(up, key, client, improve(client, folder), folder)


@pytest.mark.slow
def test_the_job_succeeds_and_its_held_out_rows_are_answered_better(done: Done) -> None:
    assert done.job["status"] == "succeeded", done.job["failure"]
    evaluated = done.job["eval"]
    assert (evaluated["baseline"]["reward"], evaluated["last"]["reward"]) == (0.0, 1.0)
    assert done.job["progress"] == {"step": 4, "total_steps": 4, "seconds_remaining": None}
    metrics = done.client.get(f"{JOBS}/{done.job['id']}/metrics")["data"]
    assert [row["experiences/count"] for row in metrics] == [1.0, 1.0, 1.0, 1.0]
    assert metrics[0]["reflection/calls"] == 21.0


@pytest.mark.slow
def test_the_download_holds_the_lessons_and_the_prompt(done: Done) -> None:
    archive, _ = fetch_adapter(done.client, done.job["id"], done.folder / "downloads")
    folder = unpack(archive)
    names = ["README.md", "experiences.json", "manifest.json", "prompt.json", "prompt.txt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    (lesson,) = json.loads((folder / "experiences.json").read_text())
    assert lesson["text"] == LESSON
    assert LESSON in (folder / "prompt.txt").read_text()
    assert "Put it before the text of the system message" in (folder / "README.md").read_text()
    kinds = [(artifact["kind"], artifact["filename"]) for artifact in done.job["artifacts"]]
    name = done.job["id"]
    assert kinds == [("metrics", f"{name}-metrics.csv"), ("experiences", f"{name}-experiences.tar.gz")]


@pytest.mark.slow
def test_the_unmodified_client_reads_the_job_and_fetches_both_result_files(done: Done) -> None:
    client = OpenAI(base_url=f"{done.up.url}/v1", api_key=done.key)
    job = client.fine_tuning.jobs.retrieve(done.job["id"])
    FineTuningJob.model_validate(job.to_dict())
    answer: Any = job.to_dict()["method"]
    assert (answer["type"], answer["rule"]) == ("reinforcement", "training_free")
    curve, library = (client.files.content(file_id).read() for file_id in job.result_files)
    assert b"experiences/count" in curve.splitlines()[0]
    with tarfile.open(fileobj=io.BytesIO(library)) as archive:
        assert "experiences.json" in archive.getnames()
    points = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert points[0].step_number == 4


@pytest.mark.slow
def test_nothing_that_the_service_answers_holds_the_operators_key(done: Done) -> None:
    path = f"{JOBS}/{done.job['id']}"
    responses = [done.client.get(f"{path}{part}") for part in ("", "/events", "/metrics", "/rollouts")]
    assert KEY not in json.dumps(responses)


@pytest.mark.slow
def test_the_lessons_of_such_a_job_are_not_a_model_to_train(done: Done) -> None:
    learned, rows = done.job["fine_tuned_model"], done.job["training_file"]
    points = done.client.get(f"{JOBS}/{done.job['id']}/checkpoints")["data"]
    supervised = {"type": "supervised", "supervised": {}}
    grpo = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
    for method in (grpo, supervised, training_free()):
        for model in (learned, points[0]["fine_tuned_model_checkpoint"]):
            body = {"model": model, "training_file": rows, "method": method}
            report = done.client.create(f"{JOBS}/validate", body)
            assert [each for each in report["problems"] if "no weights to continue from" in each["message"]]


@pytest.fixture
def _endpoints(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(settings.home)
    path = write_endpoints(tmp_path / "endpoints.json", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("GRPO_ENDPOINTS", str(path))


@pytest.mark.usefixtures("_endpoints")
def test_a_job_is_answered_in_openais_terms_and_understood_when_it_is_sent_back(client: TestClient) -> None:
    rows = upload(client, jsonl(*zorb_rows(4)))
    first = create(client, rows, method=training_free(max_experiences=9))
    answered = first["method"]
    assert (answered["type"], answered["rule"]) == ("reinforcement", "training_free")
    assert answered["reinforcement"]["grader"]["rule"] == "numeric"
    assert answered["reinforcement"]["hyperparameters"]["max_experiences"] == 9
    assert FineTuningJob.model_validate(first).method is not None
    assert create(client, rows, method=answered)["method"] == answered
    assert first["progress"]["total_steps"] == 2


@pytest.mark.usefixtures("_endpoints")
@pytest.mark.parametrize(
    ("hyperparameters", "param", "reason"),
    [
        ({"rollouts": {"endpoint": "no", "model": "m"}}, "rollouts", "there is no endpoint 'no'"),
        ({"reflection": {"endpoint": "helper", "model": "m"}}, "reflection", "does not offer 'm'"),
        ({"max_cost_usd": 1.0}, "max_cost_usd", "prices"),
        ({"learning_rate": 1e-5}, "learning_rate", "Unknown field"),
        ({"template": "no place"}, "", "template needs {experiences}"),
    ],
)
def test_what_cannot_be_done_is_refused_at_its_field(
    client: TestClient, hyperparameters: dict[str, Any], param: str, reason: str
) -> None:
    rows = upload(client, jsonl(*zorb_rows(4)))
    answer = client.post(JOBS, json=request(rows, method=training_free(**hyperparameters)))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert reason in error["message"]
    assert error["param"].startswith("method.training_free.hyperparameters")
    assert param in error["param"]


def test_terms_of_both_methods_come_back_as_they_went() -> None:
    named = {"grader": {**GRADER, "name": "zorb"}}
    for given in (
        {"type": "training_free", "training_free": named},
        {"type": "reinforcement", "reinforcement": named},
    ):
        method = METHOD.dump_python(METHOD.validate_python(given), mode="json")
        assert from_openai_terms({"method": in_openai_terms(method)})["method"] == method
