"""Models: the catalogue's and the tenant's own; what deleting one means."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.progress import publishing
from service.jobs.store.lineage import base_model_name, find_weights
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    add_artifact,
    add_checkpoint,
    add_job,
    create,
    expanded,
    make_model,
    upload,
)

pytestmark = on_sqlite  # nothing here depends on the database

NAME = "ft:Qwen/Qwen3-0.6B:tenant-a:demo:abc"


@pytest.fixture(autouse=True)
def _models(settings: Settings) -> None:
    make_model(settings.home, "tiny")
    make_model(settings.home, "Qwen/Qwen3-0.6B")


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """A succeeded job that made the model NAME."""
    job_id = add_job(database, JobState.SUCCEEDED, fine_tuned_model=NAME)
    add_artifact(settings, database, job_id, "metrics", b"step\n")
    add_artifact(settings, database, job_id, "adapter", b"weights")
    add_checkpoint(settings, database, job_id, 5, b"five")
    return job_id


def stored(settings: Settings) -> set[str]:
    folder = Path(settings.storage_location.removeprefix("file://"))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_list_has_base_models_and_ones_own(
    client: TestClient, other_client: TestClient, job_id: str
) -> None:
    page = client.get("/v1/models").json()
    assert [(model["id"], model["owned_by"]) for model in page["data"]] == [
        ("Qwen/Qwen3-0.6B", "catalogue"),
        ("tiny", "catalogue"),
        (NAME, "tenant-a"),
    ]
    assert all(model["object"] == "model" and model["created"] > 0 for model in page["data"])
    assert [model["id"] for model in other_client.get("/v1/models").json()["data"]] == [
        "Qwen/Qwen3-0.6B",
        "tiny",
    ]


def test_names_with_slashes_and_colons_are_found(
    client: TestClient, other_client: TestClient, job_id: str
) -> None:
    assert client.get("/v1/models/Qwen/Qwen3-0.6B").json()["owned_by"] == "catalogue"
    assert client.get(f"/v1/models/{NAME}").json()["id"] == NAME
    assert refusal(other_client.get(f"/v1/models/{NAME}")) == (404, "model_not_found")
    assert refusal(client.get("/v1/models/absent")) == (404, "model_not_found")


def test_deleting_a_model_takes_its_name_and_weights(
    client: TestClient, settings: Settings, job_id: str
) -> None:
    answer = client.delete(f"/v1/models/{NAME}")
    assert answer.json() == {"id": NAME, "object": "model", "deleted": True}
    assert refusal(client.get(f"/v1/models/{NAME}")) == (404, "model_not_found")
    job = client.get(f"/v1/fine_tuning/jobs/{job_id}").json()
    assert (job["status"], job["fine_tuned_model"]) == ("succeeded", None)
    assert [artifact["kind"] for artifact in job["artifacts"]] == ["metrics"]
    assert refusal(client.get(f"/v1/fine_tuning/jobs/{job_id}/adapter")) == (404, "adapter_deleted")
    assert client.get(f"/v1/fine_tuning/jobs/{job_id}/checkpoints").json()["data"] == []
    assert stored(settings) == {f"files/{job['result_files'][0]}"}
    assert refusal(client.delete(f"/v1/models/{NAME}")) == (404, "model_not_found")


def test_a_catalogue_model_is_not_a_tenants_to_delete(client: TestClient, settings: Settings) -> None:
    assert refusal(client.delete("/v1/models/Qwen/Qwen3-0.6B")) == (403, "not_owner")
    assert (settings.models_dir / "Qwen" / "Qwen3-0.6B" / "config.json").is_file()


def test_a_foreign_model_is_not_deleted(client: TestClient, other_client: TestClient, job_id: str) -> None:
    assert refusal(other_client.delete(f"/v1/models/{NAME}")) == (404, "model_not_found")
    assert client.get(f"/v1/models/{NAME}").status_code == 200


def test_a_model_in_use_stays(client: TestClient, database: Database, job_id: str) -> None:
    child = add_job(database, JobState.QUEUED, model=NAME)
    answer = client.delete(f"/v1/models/{NAME}")
    assert refusal(answer) == (400, "model_in_use")
    assert child in answer.json()["error"]["message"]


def test_a_model_stays_while_one_that_was_trained_from_it_exists(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    """Otherwise the newer one could be neither exported nor loaded for chat."""
    newer = NAME.replace("abc", "def")
    child = add_job(database, JobState.SUCCEEDED, model=NAME, fine_tuned_model=newer)
    add_artifact(settings, database, child, "adapter", b"more weights")
    answer = client.delete(f"/v1/models/{NAME}")
    assert refusal(answer) == (400, "model_in_use")
    assert child in answer.json()["error"]["message"]
    assert client.post(f"/v1/fine_tuning/jobs/{child}/exports", json={"format": "merged"}).status_code == 201
    assert client.delete(f"/v1/models/{newer}").status_code == 200
    assert client.delete(f"/v1/models/{NAME}").status_code == 200


def test_checkpoints_of_a_job_without_a_model_are_deleted_by_its_name(
    client: TestClient, other_client: TestClient, settings: Settings, database: Database, cancelled: str
) -> None:
    name = cancelled.removesuffix(":ckpt-step-20")
    child = add_job(database, JobState.QUEUED, model=cancelled)
    assert refusal(client.delete(f"/v1/models/{name}")) == (400, "model_in_use")
    client.post(f"/v1/fine_tuning/jobs/{child}/cancel")
    for other in (cancelled, name.replace(":demo:", ":other:")):
        assert refusal(client.delete(f"/v1/models/{other}")) == (404, "model_not_found")
    assert refusal(other_client.delete(f"/v1/models/{name}")) == (404, "model_not_found")
    assert client.delete(f"/v1/models/{name}").json() == {"id": name, "object": "model", "deleted": True}
    job_id = f"ftjob-{name.rpartition(':')[2]}"
    assert client.get(f"/v1/fine_tuning/jobs/{job_id}/checkpoints").json()["data"] == []
    assert stored(settings) == set()
    assert refusal(client.delete(f"/v1/models/{name}")) == (404, "model_not_found")


def test_checkpoints_of_a_resumable_job_stay(
    client: TestClient, settings: Settings, database: Database
) -> None:
    for state in set(JobState) - {JobState.FAILED, JobState.CANCELLED}:
        job_id = add_job(database, state)
        add_checkpoint(settings, database, job_id, 5, state.value.encode())
        name = f"ft:tiny:tenant-a::{job_id.removeprefix('ftjob-')}"
        assert refusal(client.delete(f"/v1/models/{name}")) == (404, "model_not_found")
        assert len(client.get(f"/v1/fine_tuning/jobs/{job_id}/checkpoints").json()["data"]) == 1


@pytest.fixture
def cancelled(settings: Settings, database: Database) -> str:
    """The model's name of a cancelled job's checkpoint at step 20."""
    job_id = add_job(database, JobState.CANCELLED, suffix="demo")
    add_checkpoint(settings, database, job_id, 20, b"twenty")
    return f"ft:tiny:tenant-a:demo:{job_id.removeprefix('ftjob-')}:ckpt-step-20"


def test_a_checkpoints_name_is_a_model(
    client: TestClient, other_client: TestClient, job_id: str, cancelled: str
) -> None:
    for name in (f"{NAME}:ckpt-step-5", cancelled):
        assert client.get(f"/v1/models/{name}").json()["id"] == name
        assert refusal(other_client.get(f"/v1/models/{name}")) == (404, "model_not_found")
    for absent in (f"{NAME}:ckpt-step-6", f"{NAME}:ckpt-step-", cancelled.replace(":demo:", ":other:")):
        assert refusal(client.get(f"/v1/models/{absent}")) == (404, "model_not_found")


def test_a_name_gives_its_weights(database: Database, job_id: str, cancelled: str) -> None:
    with database.reading() as session:
        final = find_weights(session, "tenant-a", NAME)
        point = find_weights(session, "tenant-a", cancelled)
        assert base_model_name(session, "tenant-a", cancelled) == "tiny"
    assert final is not None
    assert point is not None
    assert (final.job.id, final.kind) == (job_id, "adapter")
    assert final.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert (point.kind, point.storage_key) == (
        "adapter",
        f"jobs/{point.job.id}/checkpoints/20-1/adapter.tar.gz",
    )
    assert point.sha256 == hashlib.sha256(b"twenty").hexdigest()


def test_a_checkpoint_of_a_job_that_trains_all_weights_is_a_whole_model(
    settings: Settings, database: Database
) -> None:
    job_id = add_job(database, JobState.FAILED, method=expanded(lora="full"))
    add_checkpoint(settings, database, job_id, 20, b"twenty")
    name = f"ft:tiny:tenant-a::{job_id.removeprefix('ftjob-')}:ckpt-step-20"
    with database.reading() as session:
        weights = find_weights(session, "tenant-a", name)
    assert weights is not None
    assert weights.kind == "model"


def test_a_job_starts_from_a_cancelled_jobs_checkpoint(
    client: TestClient, database: Database, cancelled: str
) -> None:
    with database.transaction() as session:
        parent = find_weights(session, "tenant-a", cancelled)
        assert parent is not None
        parent.job.method = expanded(lora={"rank": 4, "alpha": 8})
    job = create(client, upload(client), model=cancelled)
    assert job["model"] == cancelled
    assert job["method"]["reinforcement"]["hyperparameters"]["lora"]["rank"] == 4


def test_a_model_whose_checkpoint_is_in_use_stays(
    client: TestClient, database: Database, job_id: str
) -> None:
    add_job(database, JobState.QUEUED, model=f"{NAME}:ckpt-step-5")
    assert refusal(client.delete(f"/v1/models/{NAME}")) == (400, "model_in_use")


def test_a_checkpoint_that_a_job_started_from_is_not_retired(settings: Settings, database: Database) -> None:
    job_id = add_job(database, JobState.RUNNING, fence=1)
    for step in (10, 20, 30):
        add_checkpoint(settings, database, job_id, step, b"w")
    short = job_id.removeprefix("ftjob-")
    add_job(database, JobState.SUCCEEDED, model=f"ft:tiny:tenant-a::{short}:ckpt-step-20")
    with database.transaction() as session:
        keys = publishing.retire_checkpoints(session, job_id, 1, keep=1)
    assert keys == [f"jobs/{job_id}/checkpoints/10-1/adapter.tar.gz"]
