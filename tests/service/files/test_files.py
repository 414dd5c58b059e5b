"""Files: complete or not stored, read back unchanged, visible to their tenant only."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import BadRequestError, OpenAI
from openai.types.file_create_params import ExpiresAfter
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from service.files.service import Files
from service.platform.db import Database, lock_tenant
from service.platform.tables.core import Artifact, AuditEntry
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import (
    ROWS,
    add_job,
    expire,
    expires_after,
    job_row,
    other_rows,
    refusal,
    stored,
    upload,
    uploaded,
)


def test_an_upload_answers_openais_file_object(client: TestClient) -> None:
    answer = upload(client).json()
    created_at, file_id = answer.pop("created_at"), answer.pop("id")
    assert file_id.startswith("file-")
    assert created_at > 1_700_000_000
    assert answer == {
        "object": "file",
        "bytes": len(ROWS),
        "expires_at": None,
        "filename": "train.jsonl",
        "purpose": "fine-tune",
        "status": "processed",
        "status_details": None,
        "sha256": hashlib.sha256(ROWS).hexdigest(),
        "num_rows": 3,
    }


def test_the_boundary_of_an_upload_may_contain_any_letters(client: TestClient) -> None:
    """Browsers draw 16 letters and digits for each upload."""
    fields = {"file": ("train.jsonl", ROWS), "purpose": (None, "fine-tune")}
    kind = "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkJsOnZu0g"
    answer = client.post("/v1/files", files=fields, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["bytes"]) == (200, len(ROWS))


def test_content_comes_back_as_it_was_sent(client: TestClient) -> None:
    answer = client.get(f"/v1/files/{uploaded(client)}/content")
    assert answer.content == ROWS
    assert answer.headers["etag"] == f'"{hashlib.sha256(ROWS).hexdigest()}"'
    assert answer.headers["content-disposition"].startswith('attachment; filename="train.jsonl"')
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_range_of_the_content_can_be_read(client: TestClient) -> None:
    file_id = uploaded(client)
    answer = client.get(f"/v1/files/{file_id}/content", headers={"range": "bytes=2-9"})
    assert (answer.status_code, answer.content) == (206, ROWS[2:10])
    assert answer.headers["content-range"] == f"bytes 2-9/{len(ROWS)}"


@on_sqlite
def test_a_range_behind_the_end_is_a_416(client: TestClient) -> None:
    answer = client.get(f"/v1/files/{uploaded(client)}/content", headers={"range": "bytes=9999-"})
    assert refusal(answer) == (416, None, "range_not_satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(ROWS)}"


@on_sqlite
def test_a_file_larger_than_the_spool_keeps_every_byte(client: TestClient) -> None:
    content = b"".join(b'{"prompt": "%07d %s"}\n' % (number, b"x" * 500) for number in range(5000))
    answer = client.get(f"/v1/files/{uploaded(client, content)}/content")
    assert hashlib.sha256(answer.content).digest() == hashlib.sha256(content).digest()


def test_a_retrieved_file_is_the_uploaded_one(client: TestClient) -> None:
    answer = upload(client).json()
    assert client.get(f"/v1/files/{answer['id']}").json() == answer


def test_pages_go_through_all_files_newest_first(client: TestClient) -> None:
    ids = [uploaded(client, other_rows(n)) for n in range(5)]
    first = client.get("/v1/files", params={"limit": 3}).json()
    rest = client.get("/v1/files", params={"limit": 3, "after": first["last_id"]}).json()
    assert [file["id"] for file in first["data"] + rest["data"]] == ids[::-1]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert (first["object"], first["first_id"]) == ("list", ids[-1])


def test_files_can_be_listed_oldest_first(client: TestClient) -> None:
    ids = [uploaded(client, other_rows(n)) for n in range(3)]
    page = client.get("/v1/files", params={"order": "asc", "after": ids[0]}).json()
    assert [file["id"] for file in page["data"]] == ids[1:]


def test_a_list_can_be_narrowed_to_a_purpose(client: TestClient) -> None:
    uploaded(client)
    page = client.get("/v1/files", params={"purpose": "fine-tune-results"}).json()
    assert page == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


def test_an_unknown_cursor_is_refused(client: TestClient) -> None:
    answer = client.get("/v1/files", params={"after": "file-nobody"})
    assert refusal(answer) == (404, "after", "not_found")


def test_a_deleted_file_is_gone_with_its_content(client: TestClient, settings: Settings) -> None:
    file_id = uploaded(client)
    answer = client.delete(f"/v1/files/{file_id}")
    assert answer.json() == {"id": file_id, "object": "file", "deleted": True}
    assert refusal(client.get(f"/v1/files/{file_id}")) == (404, "file_id", "not_found")
    assert refusal(client.delete(f"/v1/files/{file_id}")) == (404, "file_id", "not_found")
    assert stored(settings) == []


@pytest.mark.parametrize("state", ["queued", "running", "paused", "cancelling", "pausing"])
def test_a_file_of_an_unfinished_job_stays(client: TestClient, database: Database, state: str) -> None:
    file_id = uploaded(client)
    job_id = add_job(database, state=state, training_file=file_id)
    answer = client.delete(f"/v1/files/{file_id}")
    assert refusal(answer) == (400, "file_id", "file_in_use")
    assert job_id in answer.json()["error"]["message"]
    assert client.get(f"/v1/files/{file_id}/content").content == ROWS


def test_a_validation_file_in_use_stays(client: TestClient, database: Database) -> None:
    file_id = uploaded(client)
    add_job(database, state="running", training_file="file-x", validation_file=file_id)
    assert refusal(client.delete(f"/v1/files/{file_id}"))[2] == "file_in_use"


def test_a_deletion_waits_for_a_job_that_is_being_created(client: TestClient, database: Database) -> None:
    file_id = uploaded(client)
    with ThreadPoolExecutor(1) as threads, database.transaction() as session:
        lock_tenant(session, "tenant-a")
        session.add(job_row(training_file=file_id))
        session.flush()
        answer = threads.submit(client.delete, f"/v1/files/{file_id}")
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.2)
    assert refusal(answer.result()) == (400, "file_id", "file_in_use")


def test_a_file_of_an_ended_or_another_tenant_s_job_can_be_deleted(
    client: TestClient, database: Database
) -> None:
    file_id = uploaded(client)
    add_job(database, tenant="tenant-b", state="running", training_file="file-x", method={"a": file_id})
    add_job(database, state="succeeded", training_file=file_id)
    assert client.delete(f"/v1/files/{file_id}").status_code == 200


@pytest.mark.parametrize("kind", ["adapter", "metrics"])
def test_a_result_of_a_job_stays(client: TestClient, database: Database, kind: str) -> None:
    file_id = uploaded(client)
    job_id = add_job(database, state="succeeded", training_file="file-x", fine_tuned_model="ft:tiny:a::1")
    with database.transaction() as session:
        session.add(Artifact(id=file_id, job_id=job_id, kind=kind, step=1, fence=1))
    assert refusal(client.delete(f"/v1/files/{file_id}")) == (400, "file_id", "file_is_result")
    assert client.get(f"/v1/files/{file_id}/content").content == ROWS


@on_sqlite
def test_a_name_is_data_and_leaves_no_folder(client: TestClient, settings: Settings) -> None:
    file_id = uploaded(client, name="../../etc/päss wd")
    assert client.get(f"/v1/files/{file_id}").json()["filename"] == "../../etc/päss wd"
    disposition = client.get(f"/v1/files/{file_id}/content").headers["content-disposition"]
    assert disposition == "attachment; filename=\"p_ss_wd\"; filename*=UTF-8''p%C3%A4ss%20wd"
    assert stored(settings) == [f"files/{file_id}"]


@on_sqlite
def test_a_quotation_mark_of_a_name_is_kept(client: TestClient) -> None:
    file_id = uploaded(client, name='the "best" 50%.jsonl')  # httpx sends %22, as browsers do
    assert client.get(f"/v1/files/{file_id}").json()["filename"] == 'the "best" 50%.jsonl'


def test_a_file_expires_after_the_given_time(client: TestClient, database: Database) -> None:
    file = upload(client, **expires_after("3600")).json()
    assert file["expires_at"] - file["created_at"] in (3600, 3601)
    expire(database, file["id"])
    assert refusal(client.get(f"/v1/files/{file['id']}")) == (404, "file_id", "not_found")
    assert client.get("/v1/files").json()["data"] == []


def test_expired_content_is_removed_once_at_the_tenant_s_next_upload(
    client: TestClient, other_client: TestClient, database: Database, settings: Settings
) -> None:
    expired, used, foreign = uploaded(client), uploaded(client, other_rows(1)), uploaded(other_client)
    add_job(database, state="queued", training_file=used)
    for file_id in (expired, used, foreign):
        expire(database, file_id)
    newest = [uploaded(client), uploaded(client, other_rows(2))]
    assert sorted(stored(settings)) == sorted(f"files/{one}" for one in (used, foreign, *newest))
    with database.reading() as session:
        removed = select(AuditEntry.object_id).where(AuditEntry.action == "file.expire")
        assert session.scalars(removed).all() == [expired]


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/content"), ("DELETE", "")])
def test_a_foreign_file_does_not_exist(
    client: TestClient, other_client: TestClient, method: str, path: str
) -> None:
    file_id = uploaded(client)
    answer = other_client.request(method, f"/v1/files/{file_id}{path}")
    assert refusal(answer) == (404, "file_id", "not_found")
    assert other_client.get("/v1/files").json()["data"] == []
    assert other_client.get("/v1/files", params={"after": file_id}).status_code == 404


@on_sqlite
def test_content_that_storage_lost_is_a_404(client: TestClient, settings: Settings) -> None:
    file_id = uploaded(client)
    (settings.home / "artifacts" / "files" / file_id).unlink()
    assert refusal(client.get(f"/v1/files/{file_id}/content")) == (404, None, "content_missing")


def test_a_row_that_cannot_be_written_leaves_no_content(
    client: TestClient, database: Database, settings: Settings
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE audit RENAME TO audit_elsewhere")
    assert upload(client).status_code in (500, 503)
    assert stored(settings) == []


def test_content_whose_row_is_committed_stays_although_the_connection_is_lost(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Files._record

    def lose_the_connection(*given: Any) -> None:
        record(*given)
        raise OperationalError("COMMIT", {}, Exception("gone"))

    monkeypatch.setattr(Files, "_record", lose_the_connection)
    assert upload(client).status_code == 503
    (listed,) = client.get("/v1/files").json()["data"]
    assert client.get(f"/v1/files/{listed['id']}/content").content == ROWS


def test_uploads_and_deletions_leave_an_audit_trail(client: TestClient, database: Database) -> None:
    file_id = uploaded(client)
    client.delete(f"/v1/files/{file_id}", headers={"x-request-id": "trace-7"})
    with database.reading() as session:
        query = select(AuditEntry).where(AuditEntry.object_id == file_id).order_by(AuditEntry.id)
        entries = session.scalars(query).all()
    assert [(entry.tenant, entry.action, entry.object_id) for entry in entries] == [
        ("tenant-a", "file.create", file_id),
        ("tenant-a", "file.delete", file_id),
    ]
    assert entries[1].request_id == "trace-7"


def test_openais_client_uploads_lists_reads_and_deletes(openai_client: OpenAI) -> None:
    file = openai_client.files.create(file=("a.jsonl", ROWS), purpose="fine-tune")
    assert openai_client.files.retrieve(file.id) == file
    assert [listed.id for listed in openai_client.files.list()] == [file.id]
    assert openai_client.files.content(file.id).read() == ROWS
    assert openai_client.files.delete(file.id).deleted is True


def test_openais_client_pages_through_files(openai_client: OpenAI) -> None:
    contents = [("a", other_rows(n)) for n in range(3)]
    ids = [openai_client.files.create(file=each, purpose="fine-tune").id for each in contents]
    assert [file.id for file in openai_client.files.list(limit=1, order="asc")] == ids


def test_openais_client_sets_an_expiry(openai_client: OpenAI) -> None:
    expiry: ExpiresAfter = {"anchor": "created_at", "seconds": 7200}
    file = openai_client.files.create(file=("a", ROWS), purpose="fine-tune", expires_after=expiry)
    assert file.expires_at is not None
    assert file.expires_at - file.created_at in (7200, 7201)


def test_openais_client_shows_the_refused_field(openai_client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        openai_client.files.create(file=("a", b""), purpose="fine-tune")
    assert (caught.value.param, caught.value.code) == ("file", "file_empty")
    assert str(caught.value.request_id).startswith("req_")
