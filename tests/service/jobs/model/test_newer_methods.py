"""Jobs whose method a newer version of the service wrote, in the same database."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.service.job_samples import add_artifact, add_job, make_model

JOBS = "/v1/fine_tuning/jobs"
NEWER = {"type": "distillation", "distillation": {"hyperparameters": {"temperature": 2}}}
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize("method", [NEWER, {"type": "distillation"}])
def test_the_list_shows_a_job_with_a_newer_method(
    client: TestClient, database: Database, method: dict[str, Any]
) -> None:
    mine = add_job(database, JobState.SUCCEEDED, created_at=1)
    newer = add_job(database, JobState.QUEUED, created_at=2, method=method)
    answer = client.get(JOBS)
    assert answer.status_code == 200, answer.text
    assert [job["id"] for job in answer.json()["data"]] == [newer, mine]
    assert answer.json()["data"][0]["method"] == method


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("GET", "manifest", None),
        ("GET", "adapter", None),
        ("GET", "rollouts/overview", None),
        ("POST", "exports", {"format": "merged"}),
    ],
)
def test_what_needs_a_newer_method_says_so(
    client: TestClient, settings: Settings, database: Database, verb: str, path: str, body: Any
) -> None:
    make_model(settings.home)
    job_id = add_job(database, JobState.SUCCEEDED, method=NEWER)
    add_artifact(settings, database, job_id, "adapter", b"weights")
    answer = client.request(verb, f"{JOBS}/{job_id}/{path}", json=body)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "method_unreadable"
    assert "cannot read the job's method" in answer.json()["error"]["message"]
