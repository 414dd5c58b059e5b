"""`POST …/jobs/{id}/clone`: the same request again, with or without changes."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.jobs.intake.cloning import merged
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.tables.core import Job
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    GRADER,
    MODEL,
    add_job,
    chat,
    create,
    jsonl,
    make_model,
    num_jobs,
    reinforcement,
    upload,
)

pytestmark = on_sqlite

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def training_file(client: TestClient, settings: Any) -> str:
    make_model(settings.home)
    return upload(client)


def clone(client: TestClient, job_id: str, patch: Any = None, **headers: str) -> dict[str, Any]:
    answer = client.post(f"{JOBS}/{job_id}/clone", json=patch or {}, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def settings_of(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["method"]["reinforcement"]["hyperparameters"])


def test_without_a_change_it_is_the_same_job_once_more(client: TestClient, training_file: str) -> None:
    job = create(client, training_file, suffix="x", metadata={"a": "b"}, method=reinforcement(beta=0.1))
    again = clone(client, job["id"])
    same = ("model", "training_file", "validation_file", "suffix", "seed", "metadata", "method", "resources")
    assert {name: again[name] for name in same} == {name: job[name] for name in same}
    assert again["id"] != job["id"]


def test_a_post_without_a_body_repeats_the_job(client: TestClient, training_file: str) -> None:
    job = create(client, training_file)
    answer = client.post(f"{JOBS}/{job['id']}/clone")
    assert answer.json()["seed"] == job["seed"]


def test_a_clone_expands_the_recipe_of_the_original_request_again(
    client: TestClient, training_file: str
) -> None:
    job = create(client, training_file)
    assert settings_of(job)["loss_type"] == "grpo"
    patch = {"method": {"reinforcement": {"hyperparameters": {"recipe": "dapo"}}}}
    changed = settings_of(clone(client, job["id"], patch))
    assert (changed["loss_type"], changed["dynamic_sampling"], changed["beta"]) == ("dapo", 3, 0.0)
    assert changed["max_completion_tokens"] == 16


def test_a_clone_of_a_clone_keeps_both_changes(client: TestClient, training_file: str) -> None:
    job = create(client, training_file)
    beta = clone(client, job["id"], {"method": {"reinforcement": {"hyperparameters": {"beta": 0.2}}}})
    both = clone(client, beta["id"], {"method": {"reinforcement": {"hyperparameters": {"group_size": 4}}}})
    assert (settings_of(both)["beta"], settings_of(both)["group_size"]) == (0.2, 4)


@pytest.mark.parametrize(
    ("given", "patch", "shown"),
    [
        ({"batch_size": 4}, {"prompts_per_step": 2}, {"prompts_per_step": 2, "batch_size": "auto"}),
        ({"num_generations": 4}, {"group_size": 6}, {"group_size": 6}),
        ({"group_size": 4}, {"num_generations": 6}, {"group_size": 6}),
        ({"learning_rate": 1e-4}, {"learning_rate_multiplier": 2}, {"learning_rate": 2e-5}),
        ({"n_epochs": 2}, {"n_steps": 3}, {"n_steps": 3, "n_epochs": "auto"}),
        ({"lora": {"rank": 4}}, {"lora": {"alpha": 8}}, {}),
        ({"beta": 0.5}, {"beta": None}, {"beta": 0.04}),
    ],
)
def test_a_change_takes_the_place_of_its_other_spelling(
    client: TestClient,
    training_file: str,
    given: dict[str, Any],
    patch: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    job = create(client, training_file, method=reinforcement(**given))
    changed = settings_of(clone(client, job["id"], {"method": {"reinforcement": {"hyperparameters": patch}}}))
    assert {name: changed[name] for name in shown} == shown


def test_a_grader_of_another_type_replaces_the_old_one_whole() -> None:
    target = {"method": {"reinforcement": {"grader": GRADER}}}
    patch = {"method": {"reinforcement": {"grader": {"type": "numeric", "reference": "{{item.answer}}"}}}}
    assert merged(target, patch) == patch


def test_the_fields_of_a_grader_of_the_same_type_are_merged() -> None:
    changed = merged({"grader": GRADER}, {"grader": {"operation": "like"}})
    assert changed["grader"] == {**GRADER, "operation": "like"}


@pytest.mark.parametrize("named", [{}, {"type": "supervised"}])
def test_a_patch_of_the_method_keeps_the_hyperparameters_beside_which_there_was_none(
    client: TestClient, training_file: str, named: dict[str, str]
) -> None:
    rows = upload(client, jsonl(chat()))
    given = {"n_epochs": 2, "learning_rate_multiplier": 2.5}
    body = {"model": MODEL, "training_file": rows, "hyperparameters": given}
    job = client.post(JOBS, json=body).json()
    patch = {"method": {**named, "supervised": {"hyperparameters": {"n_epochs": 3}}}}
    again = clone(client, job["id"], patch)
    assert again["hyperparameters"] == {**job["hyperparameters"], "n_epochs": 3}
    assert again["hyperparameters"]["learning_rate_multiplier"] == 2.5
    assert again["warnings"] == []


def test_null_draws_a_new_seed(client: TestClient, training_file: str) -> None:
    job = create(client, training_file, seed=7)
    assert clone(client, job["id"], {"seed": None})["seed"] != 7


def test_a_job_of_before_requests_were_kept_is_cloned_from_its_settings(
    client: TestClient, training_file: str, database: Database
) -> None:
    job = create(client, training_file, method=reinforcement(beta=0.3), metadata={"a": "b"})
    with database.transaction() as session:
        session.execute(update(Job).values(requested=None))
    again = clone(client, job["id"])
    assert (settings_of(again), again["metadata"]) == (settings_of(job), {"a": "b"})


def test_what_a_change_makes_wrong_is_refused_at_its_field(client: TestClient, training_file: str) -> None:
    job = create(client, training_file)
    patch = {"method": {"reinforcement": {"hyperparameters": {"beta": -1}}}}
    answer = client.post(f"{JOBS}/{job['id']}/clone", json=patch)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "method.reinforcement.hyperparameters.beta"


@pytest.mark.parametrize(
    "patch",
    [
        {"method": {"reinforcement": {"hyperparameters": {"group_size": 4, "num_generations": 8}}}},
        {"method": {"reinforcement": {"hyperparameters": {"lora": 5, "lora_r": 4}}}},
        {"method": 5},
        {"training_file": None},
        {"nonsense": 1},
    ],
)
def test_a_patch_that_makes_no_request_is_a_400(
    client: TestClient, training_file: str, database: Database, patch: dict[str, Any]
) -> None:
    job = create(client, training_file)
    assert client.post(f"{JOBS}/{job['id']}/clone", json=patch).status_code == 400
    assert num_jobs(database) == 1


def test_the_checks_of_creation_hold(client: TestClient, training_file: str) -> None:
    job = create(client, training_file)
    client.post(f"{JOBS}/{job['id']}/cancel")
    assert client.delete(f"/v1/files/{training_file}").status_code == 200
    answer = client.post(f"{JOBS}/{job['id']}/clone", json={})
    assert answer.json()["error"]["param"] == "training_file"


def test_the_same_idempotency_key_makes_one_clone(client: TestClient, training_file: str) -> None:
    job = create(client, training_file)
    first, second = (clone(client, job["id"], **{"idempotency-key": "k"}) for _ in range(2))
    assert first["id"] == second["id"] != job["id"]


def test_a_clone_that_the_client_sends_again_is_not_taken_for_its_original(
    client: TestClient, training_file: str, database: Database
) -> None:
    job = create(client, training_file, seed=3)
    retried = {"x-stainless-retry-count": "1"}
    first, second = (clone(client, job["id"], **retried) for _ in range(2))
    assert first["id"] == second["id"] != job["id"]
    assert num_jobs(database) == 2


def test_its_history_names_the_original(client: TestClient, training_file: str) -> None:
    job = create(client, training_file)
    again = clone(client, job["id"])
    events = client.get(f"{JOBS}/{again['id']}/events").json()["data"]
    assert events[-1]["message"] == f"Created fine-tuning job: {again['id']}, a clone of {job['id']}"


def test_another_tenants_job_is_not_there(
    client: TestClient, other_client: TestClient, database: Database
) -> None:
    job_id = add_job(database, JobState.FAILED)
    assert other_client.post(f"{JOBS}/{job_id}/clone", json={}).status_code == 404
