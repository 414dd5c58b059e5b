"""HEAD: the status and headers of GET, no body, and nothing read for it."""

import gc
import hashlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import ROWS, uploaded
from tests.service.job_samples import add_artifact, add_checkpoint, add_job

pytestmark = on_sqlite  # HEAD does not depend on the database

VARYING = {"x-request-id", "date"}


@pytest.fixture
def remote(server_url: str, api_key: str) -> Iterator[httpx.Client]:
    """Calls the application over a real connection."""
    with httpx.Client(
        base_url=server_url, headers={"authorization": f"Bearer {api_key}"}, timeout=60
    ) as client:
        yield client


def stable(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in VARYING}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/v1/models", "/v1/files", "/docs", "/openapi.json"])
def test_head_has_the_headers_of_get(remote: httpx.Client, path: str) -> None:
    head, get = remote.head(path), remote.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert stable(head) == stable(get)
    assert int(head.headers["content-length"]) == len(get.content)


def test_head_of_a_download_has_its_size_and_digests(client: TestClient, remote: httpx.Client) -> None:
    file_id, sha256 = uploaded(client), hashlib.sha256(ROWS).hexdigest()
    path = f"/v1/files/{file_id}/content"
    head, get = remote.head(path), remote.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert stable(head) == stable(get)
    assert head.headers["content-length"] == str(len(ROWS))
    assert (head.headers["etag"], head.headers["x-checksum-sha256"]) == (f'"{sha256}"', sha256)


def test_head_of_a_download_honours_conditions_and_ranges(client: TestClient, remote: httpx.Client) -> None:
    path = f"/v1/files/{uploaded(client)}/content"
    part = remote.head(path, headers={"range": "bytes=0-9"})
    known = remote.head(path, headers={"if-none-match": f'"{hashlib.sha256(ROWS).hexdigest()}"'})
    outside = remote.head(path, headers={"range": f"bytes={len(ROWS)}-"})
    assert (part.status_code, part.headers["content-length"], part.content) == (206, "10", b"")
    assert (known.status_code, outside.status_code, outside.content) == (304, 416, b"")


def test_a_connection_is_reused_after_head(client: TestClient, server_url: str, api_key: str) -> None:
    """A body byte after HEAD would be read as the next answer."""
    path = f"/v1/files/{uploaded(client)}/content"
    place = urlsplit(server_url)
    request = f"{{}} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n{{}}\r\n"
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=60) as connection:
        connection.sendall(request.format("HEAD", "").encode())
        connection.sendall(request.format("GET", "Connection: close\r\n").encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.count(b"2+2?") == ROWS.count(b"2+2?")


def test_head_leaves_no_stream_open(client: TestClient) -> None:
    path = f"/v1/files/{uploaded(client)}/content"
    client.head(path)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert client.head(path).status_code == 200
    assert len(os.listdir("/proc/self/fd")) < before + 15, "a stream for each request"


def test_head_of_an_adapter_and_a_checkpoint_has_its_size_and_digests(
    remote: httpx.Client, settings: Settings, database: Database
) -> None:
    content = bytes(range(256)) * 8192
    sha256 = hashlib.sha256(content).hexdigest()
    job_id = add_job(database, JobState.SUCCEEDED)
    add_artifact(settings, database, job_id, "adapter", content)
    checkpoint_id = add_checkpoint(settings, database, job_id, 5, content)
    jobs = "/v1/fine_tuning"
    for path in (
        f"{jobs}/jobs/{job_id}/adapter",
        f"{jobs}/jobs/{job_id}/checkpoints/{checkpoint_id}/content",
        f"{jobs}/checkpoints/{checkpoint_id}/content",
    ):
        head, get = remote.head(path), remote.get(path)
        assert (head.status_code, head.content, get.content == content) == (200, b"", True)
        assert stable(head) == stable(get)
        assert (head.headers["etag"], head.headers["content-length"]) == (f'"{sha256}"', str(len(content)))


def test_head_of_a_live_stream_ends(remote: httpx.Client, database: Database) -> None:
    job_id = add_job(database, JobState.RUNNING)
    head = remote.head(f"/v1/fine_tuning/jobs/{job_id}/stream")
    assert (head.status_code, head.headers["content-type"].split(";")[0]) == (200, "text/event-stream")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fine_tuning/jobs/ftjob-none/adapter",
        "/v1/fine_tuning/jobs/ftjob-none/checkpoints/ftckpt_none/content",
        "/v1/fine_tuning/checkpoints/ftckpt_none/content",
        "/v1/files/file-none/content",
    ],
)
def test_head_of_a_missing_object_is_a_404(client: TestClient, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (404, b"")


def test_head_needs_a_key_too(anonymous: TestClient) -> None:
    assert anonymous.head("/v1/models").status_code == 401


def test_head_of_a_post_route_is_a_405(client: TestClient) -> None:
    answer = client.head("/v1/fine_tuning/alpha/graders/run")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
