"""Whatever goes wrong is answered in OpenAI's error shape, with a request id, and logged without secrets."""

import json
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from psycopg.errors import DiskFull, LockNotAvailable
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.app import create_app
from service.platform import logs
from service.platform.db import Database, is_disk_full, reason_of
from service.platform.storage import StorageError, StorageFull
from service.settings import Settings
from tests.conftest import on_postgresql, on_sqlite
from tests.service.web.error_samples import JOBS, error_of
from tests.support.servers import Postgres


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    """An application of its own, as some tests add routes."""
    return create_app(settings)


@on_sqlite
def test_an_unknown_route_is_a_404(client: TestClient) -> None:
    error = error_of(client.get("/v1/nothing"), 404)
    assert (error["message"], error["code"]) == ("Unknown route: GET /v1/nothing.", "unknown_route")


@on_sqlite
def test_a_wrong_method_is_a_405(client: TestClient) -> None:
    answer = client.put("/livez")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "GET, HEAD"


@on_sqlite
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/files", "GET, POST, HEAD"),
        ("/v1/files/x", "DELETE, GET, PATCH, HEAD"),
        (f"{JOBS}/validate", "POST"),
        ("/v1/models/a/b", "DELETE, GET, HEAD"),
        (f"{JOBS}/x/metrics", "GET, HEAD"),
        ("/docs", "GET, HEAD"),
        ("/dashboard/app.js", "GET, HEAD"),
    ],
)
def test_a_405_lists_all_methods_of_the_path(client: TestClient, path: str, allowed: str) -> None:
    answer = client.options(path)
    assert (error_of(answer, 405)["code"], answer.headers["allow"]) == ("method_not_allowed", allowed)


@on_sqlite
def test_a_multipart_body_without_boundary_is_a_400(client: TestClient) -> None:
    answer = client.post("/v1/files", content=b"x", headers={"content-type": "multipart/form-data"})
    assert error_of(answer)["code"] == "invalid_body"


@on_sqlite
def test_a_json_body_over_1_mib_is_a_413(server_url: str, api_key: str) -> None:
    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
    answer = httpx.post(f"{server_url}{JOBS}", content=b" " * 2**20 + b"{}", headers=headers, timeout=60)
    assert error_of(answer, 413)["code"] == "payload_too_large"


@on_sqlite
def test_a_chunked_body_over_1_mib_is_a_413(server_url: str, api_key: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 2**16

    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
    answer = httpx.post(f"{server_url}{JOBS}", content=pieces(), headers=headers, timeout=60)
    assert error_of(answer, 413)["code"] == "payload_too_large"


@on_sqlite
def test_an_unknown_exception_is_answered_neutrally_and_logged(
    app: FastAPI, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("the inner secret")

    app.add_api_route("/fail", fail)
    error = error_of(client.get("/fail", headers={"x-request-id": "trace-1"}), 500)
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "trace-1" in error["message"]
    assert "secret" not in error["message"]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    logged = next(line for line in lines if line["event"] == "unexpected error")
    assert logged["request_id"] == "trace-1"
    assert "RuntimeError: the inner secret" in logged["exception"]


@on_sqlite
def test_a_stream_that_breaks_is_cut_and_not_ended(
    app: FastAPI, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError("broken")

    app.add_api_route("/broken", lambda: StreamingResponse(pieces()))
    with pytest.raises(RuntimeError, match="broken"):
        client.get("/broken")
    assert "unexpected error" in capsys.readouterr().err


@on_sqlite
@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (StorageError("s3 is away"), 503, "unavailable"),
        (StorageFull("disk"), 507, "insufficient_storage"),
        (OSError(28, "No space left on device"), 507, "insufficient_storage"),
        (OSError(5, "Input/output error"), 500, "internal_error"),
    ],
    ids=str,
)
def test_storage_errors_have_their_own_statuses(
    app: FastAPI, client: TestClient, raised: Exception, status: int, code: str
) -> None:
    def fail() -> None:
        raise raised

    app.add_api_route("/fail", fail)
    assert error_of(client.get("/fail"), status)["code"] == code


@on_sqlite
def test_a_full_disk_of_the_database_is_named(app: FastAPI, client: TestClient, database: Database) -> None:
    def fill() -> None:
        with database.transaction() as session:
            session.execute(text("PRAGMA max_page_count = 1"))  # SQLite takes its present size instead
            session.execute(text("CREATE TABLE filler AS SELECT zeroblob(1000000)"))

    app.add_api_route("/fill", fill)
    error = error_of(client.get("/fill"), 503)
    assert error["code"] == "unavailable"
    assert error["message"] == "The disk of the database is full. Its operator must free space."


def test_a_full_disk_of_postgresql_is_recognised_and_named_in_the_log() -> None:
    full = OperationalError("INSERT", {}, DiskFull("could not extend file"))
    locked = OperationalError("INSERT", {}, LockNotAvailable("canceling statement"))
    assert (is_disk_full(full), is_disk_full(locked)) == (True, False)
    assert reason_of(full) == "OperationalError: the disk of the database is full"
    assert reason_of(locked) == "OperationalError"


@on_postgresql
def test_a_stopped_database_is_a_503_that_may_be_tried_again(
    client: TestClient, database: Database, postgres_server: Postgres
) -> None:
    postgres_server.stop()
    try:
        answer = client.get("/v1/files")
    finally:
        postgres_server.start()
    assert error_of(answer, 503)["code"] == "unavailable"
    assert answer.headers["retry-after"] == "5"
    assert client.get("/v1/files").status_code == 200


@on_postgresql
@pytest.mark.parametrize("change", ["DROP TABLE files CASCADE", "ALTER TABLE files DROP COLUMN purpose"])
def test_a_database_with_another_schema_is_a_503_that_refers_to_the_doctor(
    client: TestClient, database: Database, change: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(change)
    error = error_of(client.get("/v1/files"), 503)
    assert error["code"] == "unavailable"
    assert "grpo doctor" in error["message"]
    assert "does not exist" in capfd.readouterr().err


def test_the_log_keeps_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    event = {"password": "x1", "url": "postgresql://user:x2@host/db", "text": "key grpo_abc_x3", "tokens": 4}
    cleaned = {name: logs.mask(str(value)) for name, value in logs.drop_secrets(None, "info", event).items()}
    assert cleaned == {
        "password": "[dropped]",
        "url": "postgresql://user:***@host/db",
        "text": "key grpo_abc_***",
        "tokens": "4",
    }


@on_sqlite
def test_a_request_is_one_log_line_without_its_query(
    client: TestClient, api_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.get("/v1/files", params={"purpose": "hidden"}, headers={"x-request-id": "trace-2"})
    lines = capsys.readouterr().err.splitlines()
    (line,) = [json.loads(line) for line in lines if "trace-2" in line]
    assert {name: line[name] for name in ("method", "path", "status", "tenant", "request_id")} == {
        "method": "GET",
        "path": "/v1/files",
        "status": 200,
        "tenant": "tenant-a",
        "request_id": "trace-2",
    }
    assert "hidden" not in "".join(lines)
    assert api_key.rsplit("_", 1)[1] not in "".join(lines)


@on_sqlite
def test_answered_probes_are_logged_for_debugging_only(
    client: TestClient, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    def logged(level: str) -> list[tuple[str, str, int]]:
        logs.configure(level)
        paths = ("/livez", "/readyz", "/v1/files")
        assert [client.get(path).status_code for path in paths] == [200, 200, 200]
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        return [(each["path"], each["level"], each["status"]) for each in lines if each["event"] == "request"]

    requests = [("/v1/files", "info", 200)]
    assert logged("INFO") == requests
    assert logged("DEBUG") == [("/livez", "debug", 200), ("/readyz", "debug", 200), *requests]
    with TestClient(create_app(settings.model_copy(update={"min_free_disk_bytes": 2**60}))) as full:
        logs.configure("INFO")
        assert full.get("/readyz").status_code == 503
    assert '"path": "/readyz"' in capsys.readouterr().err


@on_sqlite
@pytest.mark.parametrize("given", ["a b", "x" * 65, "a;b"])
def test_an_odd_request_id_is_replaced(client: TestClient, given: str) -> None:
    answer = client.get("/livez", headers={"x-request-id": given})
    assert answer.headers["x-request-id"].startswith("req_")
