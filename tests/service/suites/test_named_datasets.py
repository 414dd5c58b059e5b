"""Jobs with a dataset by name: one stored file, the suite's own grader, errors at the dataset's field."""

import json
import os
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.store import machines
from service.platform.db import Database
from service.web.auth import create_key
from tests.conftest import on_sqlite
from tests.service.embedded import call_grpo
from tests.service.job_samples import jsonl, num_jobs, row, upload

pytestmark = pytest.mark.usefixtures("model")

JOBS = "/v1/fine_tuning/jobs"
EASY = {"min_terms": 2, "max_terms": 2, "max_digits": 1}


def dataset(**more: Any) -> dict[str, Any]:
    return {"type": "reasoning_gym", "task": "chain_sum", "size": 60, "config": EASY, **more}


def body(**more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"hyperparameters": {"max_completion_tokens": 8}}
    method = {"type": "reinforcement", "reinforcement": settings}
    return {"model": "tiny", "dataset": dataset(), "method": method, "seed": 3, **more}


def created(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post(JOBS, json=body(**more))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(client: TestClient, **more: Any) -> tuple[int, str, str, str]:
    answer = client.post(JOBS, json=body(**more))
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"], error["message"]


@on_sqlite
def test_the_rows_are_a_stored_file_and_the_grader_is_the_suites(client: TestClient) -> None:
    job = created(client)
    assert job["dataset"] == dataset()
    grader = job["method"]["reinforcement"]["grader"]
    assert (grader["type"], grader["rule"]) == ("python", "reasoning_gym")
    file = client.get(f"/v1/files/{job['training_file']}").json()
    assert (file["filename"], file["num_rows"]) == ("reasoning_gym chain_sum size 60 seed 0.jsonl", 60)
    shown = client.get(f"/v1/files/{file['id']}/preview", params={"limit": 1, "model": "tiny"}).json()
    assert shown["rows"][0]["answer"] == "-4"
    assert shown["tokens"]["rows"] == 60


@on_sqlite
def test_equal_datasets_are_one_file_and_a_key_repeats_a_request(
    client: TestClient, database: Database
) -> None:
    first, second = (created(client, suffix=name) for name in ("a", "b"))
    assert first["training_file"] == second["training_file"]
    assert created(client, dataset=dataset(seed=1))["training_file"] != first["training_file"]
    headers = {"Idempotency-Key": "once"}
    again = [client.post(JOBS, json=body(), headers=headers).json()["id"] for _ in range(2)]
    assert again[0] == again[1]
    assert num_jobs(database) == 4


@on_sqlite
def test_held_out_rows_are_a_share_or_a_dataset_of_their_own(client: TestClient) -> None:
    checked = client.post(f"{JOBS}/validate", json=body(validation_split=0.25)).json()
    assert (checked["valid"], checked["rows"]) == (True, {"training": 45, "validation": 15})
    held_out = dataset(seed=1, size=20)
    job = created(client, validation_dataset=held_out)
    assert job["validation_dataset"] == held_out
    assert client.get(f"/v1/files/{job['validation_file']}").json()["num_rows"] == 20


@on_sqlite
def test_a_clone_generates_the_patched_dataset_or_takes_a_file_instead(client: TestClient) -> None:
    job = created(client)
    clone = client.post(f"{JOBS}/{job['id']}/clone", json={"dataset": {"seed": 5}}).json()
    assert clone["dataset"] == dataset(seed=5)
    assert clone["training_file"] != job["training_file"]
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    patch = {"training_file": upload(client), "method": {"reinforcement": {"grader": grader}}}
    other = client.post(f"{JOBS}/{clone['id']}/clone", json=patch).json()
    assert (other["dataset"], other["training_file"]) == (None, patch["training_file"])


@on_sqlite
def test_own_answers_that_do_not_score_1_are_a_warning(client: TestClient) -> None:
    job = created(client, dataset=dataset(task="coin_flip", size=5, config={}))
    assert not [each for each in job["warnings"] if each["code"] == "own_answer_not_full"]
    warned = client.post(
        f"{JOBS}/validate", json=body(dataset=dataset(task="propositional_logic", size=5, config={}))
    ).json()["warnings"]
    message = next(each["message"] for each in warned if each["code"] == "own_answer_not_full")
    assert message.startswith(
        "dataset: in 5 of 5 checked rows the task's own answer does not score 1: the answer"
    )
    assert message.endswith("Completions of such rows may not reach 1 either.")


@on_sqlite
@pytest.mark.parametrize(
    ("given", "param", "reason"),
    [
        ({"task": "chain_sums"}, "dataset.task", "did you mean chain_sum"),
        ({"config": {"max_terms": 0}}, "dataset.config.max_terms", "max_terms must be >= min_terms"),
        ({"size": 0}, "dataset.size", "greater than or equal to 1"),
        ({"size": 10**6}, "dataset.size", "less than or equal to 50000"),
        ({"sizes": 1}, "dataset.sizes", "Unknown field"),
    ],
)
def test_a_wrong_dataset_is_refused_at_its_field(
    client: TestClient, database: Database, given: dict[str, Any], param: str, reason: str
) -> None:
    status, found, _, message = refused(client, dataset=dataset(**given))
    assert (status, found) == (400, param)
    assert reason in message
    assert not message.endswith("?.")
    assert num_jobs(database) == 0


@on_sqlite
def test_a_dataset_excludes_a_file(client: TestClient) -> None:
    assert refused(client, training_file=upload(client))[1] == "dataset"
    assert refused(client, validation_dataset=dataset(), validation_split=0.1)[1] == "validation_split"
    without = {name: value for name, value in body().items() if name != "dataset"}
    assert client.post(JOBS, json=without).json()["error"]["param"] == "training_file"


@on_sqlite
def test_where_the_suite_is_missing_the_answer_says_how_to_install_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "reasoning_gym.py").write_text("raise ImportError('no reasoning_gym')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, param, code, message = refused(client)
    assert (status, param, code) == (422, "dataset", "reasoning_gym_missing")
    assert "pip install 'grpo-service[reasoning-gym]'" in message


@on_sqlite
def test_only_a_machine_with_the_suite_may_run_the_job(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setattr(machines, "_has_reasoning_gym", lambda python: False)
    _, param, code, message = refused(client)
    assert (param, code) == ("method.reinforcement.grader", "reasoning_gym_missing")
    assert "pip install 'grpo-service[reasoning-gym]'" in message


@on_sqlite
def test_a_key_that_may_only_read_generates_nothing(client: TestClient, database: Database) -> None:
    with database.transaction() as session:
        key = create_key(session, "tenant-a", scopes=("read",))
    headers = {"authorization": f"Bearer {key}"}
    answer = client.post(f"{JOBS}/validate", json=body(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "dataset")
    assert client.get("/v1/files").json()["data"] == []


@on_sqlite
def test_a_curriculum_by_levels_needs_a_level_in_every_row(client: TestClient) -> None:
    settings = {"hyperparameters": {"max_completion_tokens": 8, "curriculum": "levels"}}
    method = {"type": "reinforcement", "reinforcement": settings}
    job = created(client, dataset=dataset(levels=3, config={}), method=method)
    rows = client.get(f"/v1/files/{job['training_file']}/content").text.splitlines()
    assert [json.loads(rows[place])["level"] for place in (0, 20, 40)] == [0, 1, 2]
    problem = refused(client, method=method)
    assert problem[1] == "training_file[1].level"
    assert "must be an integer: the job's curriculum is levels" in problem[3]


@on_sqlite
def test_rows_of_an_ordinary_file_are_refused_by_the_suites_grader(client: TestClient) -> None:
    settings = {"grader": {"type": "reasoning_gym"}, "hyperparameters": {"max_completion_tokens": 8}}
    method = {"type": "reinforcement", "reinforcement": settings}
    request = {"model": "tiny", "training_file": upload(client, jsonl(row())), "method": method}
    error = client.post(JOBS, json=request).json()["error"]
    assert error["param"] == "training_file[1]"
    assert "it is not a row of a `dataset` of the type reasoning_gym" in error["message"]


@on_sqlite
def test_tasks_are_listed_with_the_levels_of_their_curricula(server_url: str, api_key: str) -> None:
    environment = {**os.environ, "GRPO_URL": server_url, "GRPO_API_KEY": api_key}
    listed = call_grpo("suites", environment=environment)
    assert listed.returncode == 0, listed.stderr
    levels = {line.split()[0]: line.split()[1:] for line in listed.stdout.splitlines()[1:]}
    assert list(levels) == sorted(levels)
    assert len(levels) > 100
    assert (levels["acre"], levels["arc_1d"], "composite" in levels) == ([], ["4"], False)
