"""An export that its worker ends while a request deletes it or its model."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.store import queue
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_postgresql
from tests.service.job_samples import add_artifact, make_model
from tests.service.jobs.results.conftest import add_tuned
from tests.worker.jobs import claim

pytestmark = on_postgresql  # on SQLite no other transaction writes between two statements

JOBS = "/v1/fine_tuning/jobs"
FAILURE = {"code": "not_mergeable", "message": "It does not fit.", "hint": "", "evidence": []}


@pytest.mark.parametrize("ending", [JobState.SUCCEEDED, JobState.FAILED])
@pytest.mark.parametrize("deletes_model", [False, True])
def test_an_export_that_ends_while_it_is_deleted_leaves_no_archive(
    client: TestClient,
    settings: Settings,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    ending: JobState,
    deletes_model: bool,
) -> None:
    make_model(settings.home)
    job_id = add_tuned(settings, database)
    exports = f"{JOBS}/{job_id}/exports"
    export_id = client.post(exports, json={"format": "merged"}).json()["id"]
    claimed = claim(database)
    assert claimed is not None
    request = queue.request

    def ending_meanwhile(*given: Any, **named: Any) -> JobState | None:
        failure = FAILURE if ending is JobState.FAILED else None
        with database.connection() as session:
            assert queue.finish(session, export_id, claimed.fence, ending, failure=failure)
        if ending is JobState.SUCCEEDED:
            add_artifact(settings, database, export_id, "merged", b"a merged model")
        return request(*given, **named)

    monkeypatch.setattr(queue, "request", ending_meanwhile)
    model = client.get(f"{JOBS}/{job_id}").json()["fine_tuned_model"]
    place = f"/v1/models/{model}" if deletes_model else f"{exports}/{export_id}"
    assert client.delete(place).status_code == 200
    shown = [(each["id"], each["status"]) for each in client.get(exports).json()["data"]]
    assert shown == ([(export_id, "failed")] if ending is JobState.FAILED else [])
    assert [each for each in client.get("/v1/files").json()["data"] if each["filename"] == "merged.bin"] == []
