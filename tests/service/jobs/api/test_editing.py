"""Name, notes, tags and archiving of a job, and its deletion with everything that belongs to it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Integer, select

from grpo_engine.process.fault_points import InjectedFault
from service.jobs.api import editing
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results import exports
from service.jobs.results.weights import model_parts
from service.jobs.store import history
from service.ops.orphans import find_orphans
from service.platform.db import Database
from service.platform.ids import new_id
from service.platform.principal import Principal
from service.platform.storage import open_storage
from service.platform.tables.core import AuditEntry, Base, IdempotencyKey, Job, Metric, Rollout
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    MODEL,
    add_artifact,
    add_checkpoint,
    add_job,
    create,
    finish_export,
    request,
    upload,
)

JOBS = "/v1/fine_tuning/jobs"
EDITED = {
    "name": "Learning rate 3e-5",
    "notes": "Line 1\nLine 2",
    "tags": ["maths", "keep"],
    "archived": True,
}


def shown(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in EDITED}


@pytest.mark.parametrize("state", list(JobState))
@on_sqlite
def test_a_job_is_edited_in_every_state(client: TestClient, database: Database, state: JobState) -> None:
    job_id = add_job(database, state)
    assert shown(client.patch(f"{JOBS}/{job_id}", json=EDITED).json()) == EDITED
    assert shown(client.get(f"{JOBS}/{job_id}").json()) == EDITED


def test_what_a_change_leaves_out_stays_and_null_removes(client: TestClient, database: Database) -> None:
    job_id = add_job(database, JobState.PAUSED)
    client.patch(f"{JOBS}/{job_id}", json=EDITED)
    job = client.patch(f"{JOBS}/{job_id}", json={"notes": None, "tags": ["b", "a", "b"]}).json()
    assert shown(job) == {**EDITED, "notes": None, "tags": ["b", "a"]}


def test_a_change_is_audited(client: TestClient, database: Database) -> None:
    job_id = add_job(database, JobState.PAUSED)
    client.patch(f"{JOBS}/{job_id}", json=EDITED)
    with database.reading() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.object_id == job_id)).all()
    assert (entry.action, entry.object_id, entry.tenant) == ("job.update", job_id, "tenant-a")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": "  "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"notes": "x" * 4097}, "notes"),
        ({"tags": ["x"] * 17}, "tags"),
        ({"tags": ["x" * 65]}, "tags[0]"),
        ({"tags": [" "]}, "tags[0]"),
        ({"tags": None}, "tags"),
        ({"archived": "yes"}, "archived"),
        ({"seed": 1}, "seed"),
    ],
)
@on_sqlite
def test_an_invalid_change_names_the_field_and_changes_nothing(
    client: TestClient, database: Database, change: dict[str, Any], param: str
) -> None:
    job_id = add_job(database, JobState.PAUSED)
    answer = client.patch(f"{JOBS}/{job_id}", json={"archived": True, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert client.get(f"{JOBS}/{job_id}").json()["archived"] is False


def test_a_new_job_has_the_given_name_notes_and_tags_without_outer_spaces(
    client: TestClient, model: Path
) -> None:
    job = create(client, upload(client), name=" First ", notes="n", tags=["a", " b"])
    assert shown(job) == {"name": "First", "notes": "n", "tags": ["a", "b"], "archived": False}


def test_a_clone_keeps_the_current_tags_but_neither_name_nor_notes(client: TestClient, model: Path) -> None:
    job = create(client, upload(client), name="First", notes="n", tags=["a"])
    client.patch(f"{JOBS}/{job['id']}", json={"tags": ["b"], "archived": True})
    clone = client.post(f"{JOBS}/{job['id']}/clone", json={}).json()
    assert shown(clone) == {"name": None, "notes": None, "tags": ["b"], "archived": False}
    named = client.post(f"{JOBS}/{job['id']}/clone", json={"name": "Second"}).json()
    assert named["name"] == "Second"


# ---- deletion


@pytest.fixture
def finished(settings: Settings, database: Database) -> str:
    """Id of a succeeded job with everything that a run leaves behind."""
    job_id = add_job(database, JobState.SUCCEEDED, suffix="demo")
    add_checkpoint(settings, database, job_id, 5, b"checkpoint")
    for kind in ("adapter", "metrics"):
        add_artifact(settings, database, job_id, kind, kind.encode())
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.fine_tuned_model = names.fine_tuned_model(MODEL, "tenant-a", "demo", job_id)
        history.append(session, job_id, history.HistoryEntry("message", "started"))
        session.add(Metric(job_id=job_id, step=1, values={"reward": 0.5}))
        session.add(Rollout(job_id=job_id, split="train", step=1, position=0, has_signal=True, data={}))
    return job_id


def add_export(settings: Settings, database: Database, job_id: str, *, is_finished: bool = True) -> str:
    export_id = new_id(names.EXPORT)
    about = {"job_id": job_id, "format": "merged", "step": 5, "base": MODEL, "sha256": "0" * 64}
    with database.transaction() as session:
        source = session.get_one(Job, job_id)
        columns = {"model": MODEL, "training_file": "", "seed": 1, "method": source.method, "export": about}
        session.add(Job(id=export_id, tenant="tenant-a", state="queued", **columns))
    if is_finished:
        finish_export(settings, database, export_id, b"merged")
    return export_id


def rows_naming(database: Database, job_ids: list[str]) -> set[str]:
    """Tables with a row of these jobs."""
    found = set()
    with database.reading() as session:
        for table in Base.metadata.sorted_tables:
            for column in (table.c[name] for name in ("job_id", "id") if name in table.c):
                if isinstance(column.type, Integer):
                    continue
                if session.execute(select(column).where(column.in_(job_ids))).first():
                    found.add(table.name)
    return found


def stored_objects(settings: Settings) -> list[str]:
    return sorted(key for key, _, _ in open_storage(settings.storage_location).listed())


def test_a_deleted_job_leaves_no_row_and_no_object(
    client: TestClient, settings: Settings, database: Database, finished: str
) -> None:
    export_id = add_export(settings, database, finished)
    other = add_job(database, JobState.SUCCEEDED)
    kept = add_checkpoint(settings, database, other, 5, b"another job's")
    answer = client.delete(f"{JOBS}/{finished}")
    deleted = {"object": "fine_tuning.job.deleted", "id": finished, "deleted": True}
    assert (answer.status_code, answer.json()) == (200, deleted)
    assert rows_naming(database, [finished, export_id]) == set()
    assert stored_objects(settings) == [f"jobs/{other}/checkpoints/5-1/adapter.tar.gz"]
    assert client.get(f"{JOBS}/{finished}").status_code == 404
    assert client.get(f"{JOBS}/{other}/checkpoints").json()["data"][0]["id"] == kept
    assert f"ft:{MODEL}" not in client.get("/v1/models").text


def test_the_datasets_of_a_deleted_job_stay(client: TestClient, model: Path) -> None:
    file_id = upload(client)
    job = create(client, file_id)
    client.post(f"{JOBS}/{job['id']}/cancel")
    assert client.delete(f"{JOBS}/{job['id']}").status_code == 200
    assert client.get(f"/v1/files/{file_id}").status_code == 200


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.PAUSED, JobState.CANCELLING])
@on_sqlite
def test_an_unfinished_job_cannot_be_deleted(client: TestClient, database: Database, state: JobState) -> None:
    job_id = add_job(database, state)
    answer = client.delete(f"{JOBS}/{job_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_not_finished")
    assert answer.headers["x-should-retry"] == "false"
    assert "Cancel it" in answer.json()["error"]["message"]
    assert client.get(f"{JOBS}/{job_id}").status_code == 200


def test_a_job_whose_export_runs_cannot_be_deleted(
    client: TestClient, settings: Settings, database: Database, finished: str
) -> None:
    export_id = add_export(settings, database, finished, is_finished=False)
    error = client.delete(f"{JOBS}/{finished}").json()["error"]
    assert error["code"] == "export_not_finished"
    assert export_id in error["message"]


def test_a_job_that_is_deleted_while_its_export_is_requested_gets_none(
    client: TestClient, database: Database, model: Path, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleting(*given: Any) -> Any:
        assert client.delete(f"{JOBS}/{finished}").status_code == 200
        return model_parts(*given)

    monkeypatch.setattr(exports, "model_parts", deleting)
    answer = client.post(f"{JOBS}/{finished}/exports", json={"format": "merged"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")
    with database.reading() as session:
        assert session.scalars(select(Job.id)).all() == []


@pytest.mark.parametrize("suffix", ["", ":ckpt-step-5"])
def test_a_job_that_another_one_continues_cannot_be_deleted_before_it(
    client: TestClient, database: Database, finished: str, suffix: str
) -> None:
    start = client.get(f"{JOBS}/{finished}").json()["fine_tuned_model"] + suffix
    child = add_job(database, JobState.SUCCEEDED, model=start, fine_tuned_model="ft:tiny:a::child")
    error = client.delete(f"{JOBS}/{finished}").json()["error"]
    assert error["code"] == "model_in_use"
    assert error["message"].startswith(f"The job is needed by {child}, which started from its weights.")
    assert client.delete(f"{JOBS}/{child}").status_code == 200
    assert client.delete(f"{JOBS}/{finished}").status_code == 200


def test_a_continuation_without_weights_does_not_keep_its_origin(
    client: TestClient, database: Database, finished: str
) -> None:
    start = client.get(f"{JOBS}/{finished}").json()["fine_tuned_model"]
    add_job(database, JobState.FAILED, model=start)
    assert client.delete(f"{JOBS}/{finished}").status_code == 200


def test_another_tenants_job_is_not_found(other_client: TestClient, finished: str) -> None:
    assert other_client.delete(f"{JOBS}/{finished}").status_code == 404
    assert other_client.patch(f"{JOBS}/{finished}", json={"name": "x"}).status_code == 404


def test_a_deleted_jobs_idempotency_key_creates_a_new_one(
    client: TestClient, database: Database, model: Path
) -> None:
    body, headers = request(upload(client)), {"idempotency-key": "again"}
    first = client.post(JOBS, json=body, headers=headers).json()["id"]
    client.post(f"{JOBS}/{first}/cancel")
    client.delete(f"{JOBS}/{first}")
    second = client.post(JOBS, json=body, headers=headers)
    assert second.status_code == 200
    assert second.json()["id"] != first
    with database.reading() as session:
        assert [key.job_id for key in session.scalars(select(IdempotencyKey))] == [second.json()["id"]]


def test_objects_that_a_crash_leaves_behind_are_orphans(
    settings: Settings, database: Database, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = add_job(database, JobState.SUCCEEDED)
    add_checkpoint(settings, database, other, 5, b"another job's")
    storage = open_storage(settings.storage_location)
    left = [key for key in stored_objects(settings) if other not in key]

    def crash(point: str) -> None:
        raise InjectedFault(point)

    monkeypatch.setattr(editing, "fault_point", crash)
    with pytest.raises(InjectedFault, match=r"job\.deleted"):
        editing.delete_job(database, storage, Principal("tenant-a", "k"), finished)
    assert rows_naming(database, [finished]) == set()
    assert list(find_orphans(database, storage, timedelta(seconds=-1))) == left
