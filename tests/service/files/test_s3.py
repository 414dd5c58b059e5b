"""Files of a deployment whose storage is S3: what its faults mean to a client of the API."""

import hashlib
import random

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.platform.storage import StorageDenied
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import ROWS, upload, uploaded
from tests.support.s3 import SECRET, SESSION_TOKEN, Bucket
from tests.support.s3_proxy import CUT, KEY_ID, pass_all, strike

pytestmark = on_sqlite  # what is tested here does not depend on the database

LARGE = b"\n".join(b'{"x": "%s"}' % random.Random(n).randbytes(2**18).hex().encode() for n in range(23))
"""More than ten MiB of rows."""


@pytest.fixture
def settings(settings: Settings, bucket: Bucket) -> Settings:
    return settings.model_copy(update={"storage_url": bucket.location})


def test_a_large_dataset_goes_to_the_bucket_and_comes_back_in_ranges(
    client: TestClient, bucket: Bucket
) -> None:
    file_id = uploaded(client, LARGE)
    assert bucket.keys == [f"files/{file_id}"]
    path = f"/v1/files/{file_id}/content"
    whole = client.get(path)
    assert hashlib.sha256(whole.content).hexdigest() == hashlib.sha256(LARGE).hexdigest()
    part = client.get(path, headers={"range": "bytes=5000000-11000000", "if-range": whole.headers["etag"]})
    assert (part.status_code, part.content) == (206, LARGE[5_000_000:11_000_001])
    assert client.get(path, headers={"if-none-match": whole.headers["etag"]}).status_code == 304


def test_deleting_a_file_removes_its_object(client: TestClient, bucket: Bucket) -> None:
    file_id = uploaded(client)
    assert client.delete(f"/v1/files/{file_id}").status_code == 200
    assert bucket.keys == []


def test_a_deletion_succeeds_while_the_store_refuses_it(
    client: TestClient, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    file_id = uploaded(client)
    bucket.proxy.rule = strike(503, "DELETE POST")
    answer = client.delete(f"/v1/files/{file_id}")
    assert (answer.status_code, answer.json()["deleted"]) == (200, True)
    assert client.get(f"/v1/files/{file_id}").status_code == 404
    assert '"event": "orphans left"' in "".join(capsys.readouterr())
    assert bucket.keys == [f"files/{file_id}"]


def test_an_upload_that_fails_in_storage_is_reported_and_leaves_nothing(
    client: TestClient, bucket: Bucket
) -> None:
    bucket.proxy.rule = strike(CUT, "PUT", "partNumber=2")
    answer = upload(client, LARGE)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        503,
        "The storage does not respond. Try again later.",
    )
    assert client.get("/v1/files").json()["data"] == []
    assert (bucket.keys, bucket.num_unfinished_uploads) == ([], 0)


def test_an_object_of_a_store_that_does_not_respond_is_not_missing(
    client: TestClient, bucket: Bucket
) -> None:
    file_id = uploaded(client)
    bucket.proxy.rule = strike(503, "GET HEAD")
    assert client.get(f"/v1/files/{file_id}/content").status_code == 503
    bucket.proxy.rule = pass_all
    assert client.get(f"/v1/files/{file_id}/content").content == ROWS


def test_refused_credentials_are_logged_and_stay_secret(
    client: TestClient, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.proxy.rule = strike(403, "PUT GET HEAD POST")
    answer = upload(client)
    assert answer.status_code == 503
    logged = "".join(capsys.readouterr())
    assert "403 Forbidden (InvalidAccessKeyId)" in logged
    for secret in (SECRET, SESSION_TOKEN, KEY_ID):
        assert secret not in logged + answer.text


def test_the_api_does_not_start_on_a_missing_bucket(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"storage_url": "s3://no-such-bucket/prefix"})
    with (
        pytest.raises(StorageDenied, match="GRPO_STORAGE_URL=s3://no-such-bucket/prefix cannot be used"),
        TestClient(create_app(elsewhere)),
    ):
        raise AssertionError("it started")
