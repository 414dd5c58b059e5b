"""A job that one request edits while another one deletes it."""

import threading
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.api import editing
from service.jobs.model.states import JobState
from service.platform.db import Database
from tests.service.job_samples import add_job

JOBS = "/v1/fine_tuning/jobs"


def test_a_job_that_is_deleted_while_it_is_edited_is_not_found(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    statuses: list[int] = []
    editor = threading.Thread(
        target=lambda: statuses.append(client.patch(f"{JOBS}/{job_id}", json={"name": "x"}).status_code)
    )
    delete_rows = editing._delete_rows

    def deleting(*given: Any) -> None:
        editor.start()
        editor.join(0.5)  # time to read the row
        delete_rows(*given)

    monkeypatch.setattr(editing, "_delete_rows", deleting)
    assert client.delete(f"{JOBS}/{job_id}").status_code == 200
    editor.join(10)
    assert statuses == [404]
