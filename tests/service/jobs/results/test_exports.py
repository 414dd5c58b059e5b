"""`…/jobs/{id}/exports`: one export per weights, queued for a worker, polled, downloaded, deleted."""

import hashlib
import json
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.jobs.model.states import JobState
from service.jobs.store import queue_health
from service.platform.db import Database
from service.platform.storage import open_storage
from service.platform.tables.core import Artifact, File, Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    add_artifact,
    add_checkpoint,
    add_job,
    expanded,
    finish_export,
    lessons_method,
)
from tests.service.jobs.results.conftest import add_tuned

pytestmark = on_sqlite  # nothing here depends on the database

JOBS = "/v1/fine_tuning/jobs"
MERGED = {"format": "merged"}
CONTENT = b"a merged model"


def create(client: TestClient, job_id: str, **body: Any) -> Any:
    return client.post(f"{JOBS}/{job_id}/exports", json=MERGED | body)


def exported(client: TestClient, settings: Settings, database: Database, job_id: str) -> dict[str, Any]:
    """An export as a worker leaves it."""
    export_id = create(client, job_id).json()["id"]
    finish_export(settings, database, export_id, CONTENT)
    return dict(client.get(f"{JOBS}/{job_id}/exports/{export_id}").json())


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_an_export_waits_in_the_queue_and_is_not_a_job(
    client: TestClient, database: Database, job_id: str
) -> None:
    answer = create(client, job_id)
    export = answer.json()
    assert answer.status_code == 201
    assert (export["object"], export["status"], export["job_id"]) == ("fine_tuning.export", "queued", job_id)
    assert (export["step"], export["bytes"], export["sha256"], export["content"]) == (10, None, None, None)
    assert client.get(f"{JOBS}/{job_id}/exports").json()["data"] == [export]
    assert client.get(f"{JOBS}/{job_id}/exports/{export['id']}").json() == export
    assert [job["id"] for job in client.get(JOBS).json()["data"]] == [job_id]
    assert refusal(client.get(f"{JOBS}/{export['id']}")) == (404, "job_not_found")
    with database.reading() as session:
        assert {each.state: each.num_jobs for each in queue_health.job_counts(session)} == {"succeeded": 1}


def test_the_same_weights_are_exported_once(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    first, again = create(client, job_id), create(client, job_id, which="final")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    finish_export(settings, database, first.json()["id"], CONTENT)
    assert create(client, job_id).json()["status"] == "succeeded"
    point = add_checkpoint(settings, database, job_id, 5, b"another adapter")
    other = create(client, job_id, checkpoint=point)
    assert (other.status_code, other.json()["step"]) == (201, 5)


def test_after_a_failed_export_a_new_one_is_made(client: TestClient, database: Database, job_id: str) -> None:
    first = create(client, job_id).json()
    failure = {"code": "not_mergeable", "message": "It does not fit.", "hint": "", "evidence": []}
    with database.transaction() as session:
        row = session.get_one(Job, first["id"])
        row.state, row.failure = JobState.FAILED.value, failure
    found = client.get(f"{JOBS}/{job_id}/exports/{first['id']}").json()
    assert (found["status"], found["failure"]) == ("failed", failure)
    assert found["error"] == {"code": "not_mergeable", "message": "It does not fit.", "param": None}
    refused = client.get(f"{JOBS}/{job_id}/exports/{first['id']}/content").json()["error"]
    reason = f"The export {first['id']} has failed: It does not fit. Create a new one with POST"
    assert refused["message"] == f"{reason} {JOBS}/{job_id}/exports."
    answer = create(client, job_id)
    assert (answer.status_code, answer.json()["id"] != first["id"]) == (201, True)


def test_a_finished_export_is_downloaded_in_full_and_in_part(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    export = exported(client, settings, database, job_id)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert (export["bytes"], export["sha256"]) == (len(CONTENT), sha256)
    whole = client.get(export["content"])
    assert (whole.content, whole.headers["x-checksum-sha256"]) == (CONTENT, sha256)
    part = client.get(export["content"], headers={"range": "bytes=2-7"})
    assert (part.status_code, part.content) == (206, CONTENT[2:8])
    assert client.get(f"/v1/files/{export['file_id']}/content").content == CONTENT


def test_the_old_address_redirects_to_the_export_or_explains_how_to_create_one(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    old = f"{JOBS}/{job_id}/adapter?format=merged"
    missing = client.get(old)
    assert refusal(missing) == (404, "export_not_ready")
    assert f"POST {JOBS}/{job_id}/exports" in missing.json()["error"]["message"]
    export_id = create(client, job_id).json()["id"]
    waiting = client.get(old)
    assert refusal(waiting) == (404, "export_not_ready")
    assert f"GET {JOBS}/{job_id}/exports/{export_id}" in waiting.json()["error"]["message"]
    finish_export(settings, database, export_id, CONTENT)
    redirect = client.get(old, follow_redirects=False)
    assert redirect.status_code == 303
    behind_a_prefix = urljoin(f"https://example.com/grpo{old}", redirect.headers["location"])
    assert behind_a_prefix == f"https://example.com/grpo{JOBS}/{job_id}/exports/{export_id}/content"
    assert client.get(old, follow_redirects=True).content == CONTENT


def test_whole_weights_are_still_sent_from_the_old_address(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_tuned(settings, database, method=expanded(lora="full"))
    assert client.get(f"{JOBS}/{job_id}/adapter?format=merged").content == b"an adapter"


def test_an_export_that_is_not_finished_has_no_content(client: TestClient, job_id: str) -> None:
    export = create(client, job_id).json()
    answer = client.get(f"{JOBS}/{job_id}/exports/{export['id']}/content")
    assert refusal(answer) == (404, "export_not_ready")


def test_deleting_an_export_removes_its_archive_and_lets_it_be_made_again(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    export = exported(client, settings, database, job_id)
    place = f"{JOBS}/{job_id}/exports/{export['id']}"
    assert client.delete(place).json() == {
        "object": "fine_tuning.export", "id": export["id"], "deleted": True
    }  # fmt: skip
    assert not open_storage(settings.storage_location).exists(f"files/{export['file_id']}")
    assert refusal(client.get(place)) == (404, "export_not_found")
    assert client.get(f"{JOBS}/{job_id}/exports").json()["data"] == []
    assert create(client, job_id).status_code == 201


def test_deleting_a_waiting_export_cancels_it(client: TestClient, database: Database, job_id: str) -> None:
    export = create(client, job_id).json()
    client.delete(f"{JOBS}/{job_id}/exports/{export['id']}").raise_for_status()
    with database.reading() as session:
        assert session.get_one(Job, export["id"]).state == "cancelled"
    assert create(client, job_id).status_code == 201


def test_deleting_a_model_deletes_its_exports(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    exported(client, settings, database, job_id)
    point = add_checkpoint(settings, database, job_id, 5, b"another adapter")
    waiting = create(client, job_id, checkpoint=point).json()["id"]
    model = client.get(f"{JOBS}/{job_id}").json()["fine_tuned_model"]
    client.delete(f"/v1/models/{model}").raise_for_status()
    with database.reading() as session:
        assert session.get_one(Job, waiting).state == "cancelled"
        assert session.scalars(select(File).where(File.deleted_at.is_(None))).all() == []
        assert session.scalars(select(Artifact)).all() == []


def test_an_export_counts_against_the_limits_of_jobs_and_storage(
    app: Any, client: TestClient, job_id: str
) -> None:
    app.state.settings = app.state.settings.model_copy(update={"max_stored_bytes": 5})
    assert refusal(create(client, job_id)) == (429, "storage_quota_exceeded")
    limits = {"max_stored_bytes": None, "max_queued_jobs": 1}
    app.state.settings = app.state.settings.model_copy(update=limits)
    create(client, job_id).raise_for_status()
    other = client.get(f"{JOBS}/{job_id}/exports").json()["data"]
    assert len(other) == 1


def test_a_base_that_left_the_catalogue_is_named(
    client: TestClient, settings: Settings, database: Database
) -> None:
    answer = create(client, add_tuned(settings, database))
    assert refusal(answer) == (422, "base_model_missing")
    assert "the model tiny is not in the catalogue any more" in answer.json()["error"]["message"]


def test_an_adapter_on_stored_whole_weights_needs_no_catalogue(
    client: TestClient, settings: Settings, database: Database
) -> None:
    parent = add_tuned(settings, database, method=expanded(lora="full"))
    with database.reading() as session:
        name = session.get_one(Job, parent).fine_tuned_model
    assert create(client, add_tuned(settings, database, model=name)).status_code == 201


def test_a_job_without_weights_and_lessons_are_refused(
    client: TestClient, settings: Settings, database: Database
) -> None:
    running = add_job(database, JobState.RUNNING)
    assert refusal(create(client, running)) == (404, "no_adapter_yet")
    lessons = add_job(database, JobState.SUCCEEDED, method=lessons_method())
    add_artifact(settings, database, lessons, "experiences", b"lessons")
    assert refusal(create(client, lessons)) == (400, "model_without_weights")


@pytest.mark.parametrize("body", [{}, {"format": "gguf"}, {"format": "merged", "which": "worst"}, {"x": 1}])
def test_a_body_that_is_not_understood_is_refused(
    client: TestClient, job_id: str, body: dict[str, Any]
) -> None:
    answer = client.post(f"{JOBS}/{job_id}/exports", content=json.dumps(body))
    assert answer.status_code == 400


def test_another_tenants_export_does_not_exist(
    client: TestClient, other_client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    export = exported(client, settings, database, job_id)
    assert refusal(create(other_client, job_id)) == (404, "job_not_found")
    for method, place in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = other_client.request(method, f"{JOBS}/{job_id}/exports/{export['id']}{place}")
        assert refusal(answer) == (404, "job_not_found")
    assert client.get(export["content"]).status_code == 200
