"""The same bytes are one file of a tenant: repeated, concurrent, deleted, expired, lost."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from sqlalchemy import update

from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import File
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import ROWS, expire, expires_after, other_rows, stored, upload, uploaded


def ids(client: TestClient) -> list[str]:
    return [file["id"] for file in client.get("/v1/files").json()["data"]]


def test_a_repeated_upload_is_the_first_file_with_its_name(client: TestClient, settings: Settings) -> None:
    first = upload(client).json()
    assert upload(client, name="again.jsonl").json() == first
    other = uploaded(client, other_rows(1))
    assert ids(client) == [other, first["id"]]
    assert sorted(stored(settings)) == sorted(f"files/{name}" for name in (other, first["id"]))


def test_concurrent_uploads_of_the_same_bytes_make_one_file(client: TestClient, settings: Settings) -> None:
    with ThreadPoolExecutor(6) as threads:
        found = set(threads.map(lambda _: uploaded(client), range(12)))
    assert len(found) == 1
    assert stored(settings) == [f"files/{found.pop()}"]


def test_another_tenant_gets_a_file_of_its_own(client: TestClient, other_client: TestClient) -> None:
    assert uploaded(client) != uploaded(other_client)


def test_deleted_and_expired_files_do_not_count(client: TestClient, database: Database) -> None:
    first = uploaded(client)
    client.delete(f"/v1/files/{first}")
    second = uploaded(client)
    expire(database, second)
    assert len({first, second, uploaded(client)}) == 3


def lifetime(file: Any) -> int | None:
    return file["expires_at"] and round((file["expires_at"] - file["created_at"]) / 100)


@on_sqlite
def test_the_longer_lifetime_counts(client: TestClient) -> None:
    assert lifetime(upload(client, **expires_after("7200")).json()) == 72
    assert lifetime(upload(client, **expires_after("3600")).json()) == 72
    assert lifetime(upload(client, **expires_after("10000")).json()) == 100
    assert lifetime(upload(client).json()) is None
    assert lifetime(upload(client, **expires_after("3600")).json()) is None


@on_sqlite
def test_a_file_of_an_earlier_version_gets_its_number_of_rows(client: TestClient, database: Database) -> None:
    first = upload(client).json()
    with database.transaction() as session:
        session.execute(update(File).values(num_rows=None))
    assert upload(client).json() == first
    assert client.get(f"/v1/files/{first['id']}").json() == first


@on_sqlite
def test_content_that_the_storage_lost_is_stored_again(client: TestClient, settings: Settings) -> None:
    file_id = uploaded(client)
    (settings.home / "artifacts" / "files" / file_id).unlink()
    assert uploaded(client) == file_id
    assert client.get(f"/v1/files/{file_id}/content").content == ROWS


@on_sqlite
def test_a_file_deleted_during_an_equal_upload_is_stored_as_a_new_one(
    client: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = uploaded(client)
    exists = Storage.exists

    def deleted_before(storage: Storage, key: str) -> bool:
        assert client.delete(f"/v1/files/{first}").status_code == 200
        return exists(storage, key)

    monkeypatch.setattr(Storage, "exists", deleted_before)
    second = uploaded(client)
    assert ids(client) == [second]
    assert stored(settings) == [f"files/{second}"]
    assert client.get(f"/v1/files/{second}/content").content == ROWS


def test_openais_client_gets_the_first_file_again(openai_client: OpenAI) -> None:
    first = openai_client.files.create(file=("a.jsonl", ROWS), purpose="fine-tune")
    assert openai_client.files.create(file=("b.jsonl", ROWS), purpose="fine-tune") == first
