"""S3 that disconnects, refuses or hangs: no partial object is visible, and errors contain no credentials."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.contract.manifest import sha256_of
from service.platform.storage import (
    RETRIES,
    ObjectMissing,
    Storage,
    StorageDenied,
    StorageError,
    StorageFull,
    open_storage,
    open_usable_storage,
)
from tests.support.s3 import SECRET, SESSION_TOKEN, Bucket
from tests.support.s3_proxy import CUT, CUT_ANSWER, HANG, KEY_ID, pass_all, strike

SMALL = b"small"
LARGE = random.Random(1).randbytes(12 * 2**20)
"""Three parts."""
TRIES = RETRIES["max_retries"] + 1
PART_2 = "partNumber=2"


@pytest.fixture
def storage(bucket: Bucket) -> Storage:
    return open_storage(bucket.location)


def test_a_large_file_goes_in_parts_and_comes_back_whole(
    storage: Storage, bucket: Bucket, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(LARGE)
    storage.put("x", source)
    storage.download("x", target)
    assert sha256_of(target) == hashlib.sha256(LARGE).hexdigest()
    assert sum("partNumber=" in request for request in bucket.proxy.seen) == 3


@pytest.mark.parametrize("fault", [CUT, CUT_ANSWER, 500, 503])
@pytest.mark.parametrize(("words", "content"), [("", SMALL), (PART_2, LARGE)])
def test_an_interrupted_upload_is_retried(
    storage: Storage, bucket: Bucket, fault: int, words: str, content: bytes
) -> None:
    bucket.proxy.rule = strike(fault, "PUT", words, times=1)
    storage.put("x", content)
    assert len(bucket.proxy.struck) == 1
    assert storage.get_bytes("x") == content


@pytest.mark.parametrize("fault", [CUT, 503])
@pytest.mark.parametrize(
    ("method", "words", "content"), [("PUT", "", SMALL), ("PUT", PART_2, LARGE), ("POST", "uploadId", LARGE)]
)
def test_an_incomplete_put_is_never_visible_and_leaves_no_unfinished_upload(
    storage: Storage, bucket: Bucket, fault: int, method: str, words: str, content: bytes
) -> None:
    bucket.proxy.rule = strike(fault, method, words)
    with pytest.raises(StorageError):
        storage.put("x", content)
    assert len(bucket.proxy.struck) == TRIES
    assert (bucket.keys, bucket.num_unfinished_uploads) == ([], 0)


def test_an_interrupted_upload_leaves_the_older_object(storage: Storage, bucket: Bucket) -> None:
    storage.put("x", SMALL)
    bucket.proxy.rule = strike(CUT, "PUT", PART_2)
    with pytest.raises(StorageError):
        storage.put("x", LARGE)
    bucket.proxy.rule = pass_all
    assert storage.get_bytes("x") == SMALL


def test_a_completed_upload_whose_response_was_lost_can_be_retried(storage: Storage, bucket: Bucket) -> None:
    bucket.proxy.rule = strike(CUT_ANSWER, "POST", "uploadId", times=1)
    with pytest.raises(StorageError) as failed:
        storage.put("x", LARGE)
    assert not isinstance(failed.value, ObjectMissing)
    storage.put("x", LARGE)
    assert storage.get_bytes("x") == LARGE


def test_a_store_that_hangs_is_given_up(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "300ms")
    bucket.proxy.rule = strike(HANG, "PUT")
    with pytest.raises(StorageError):
        open_storage(bucket.location).put("x", SMALL)
    assert bucket.keys == []


def test_an_interrupted_download_is_retried(storage: Storage, bucket: Bucket) -> None:
    storage.put("x", LARGE)
    bucket.proxy.rule = strike(CUT_ANSWER, "GET", times=1)
    assert b"".join(storage.stream("x")) == LARGE


def test_a_slow_reader_keeps_no_request_open(storage: Storage, bucket: Bucket) -> None:
    storage.put("x", LARGE)
    bucket.proxy.seen.clear()
    pieces = storage.stream("x", 0, len(LARGE))
    assert [len(next(pieces)), len(bucket.proxy.seen)] == [4 * 2**20, 1]
    assert b"".join(pieces) == LARGE[4 * 2**20 :]
    assert len(bucket.proxy.seen) == 3


def test_an_object_that_shrinks_while_it_is_read_is_an_error(storage: Storage) -> None:
    storage.put("x", LARGE)
    pieces = storage.stream("x")
    next(pieces)
    storage.put("x", LARGE[: 5 * 2**20])
    with pytest.raises(StorageError):
        list(pieces)


USES: dict[str, Callable[[Storage], object]] = {
    "put": lambda storage: storage.put("x", SMALL),
    "put in parts": lambda storage: storage.put("x", LARGE),
    "get": lambda storage: storage.get_bytes("x"),
    "stream": lambda storage: storage.stream("x"),
    "size": lambda storage: storage.size("x"),
    "exists": lambda storage: storage.exists("x"),
    "delete": lambda storage: storage.delete("x"),
}


@pytest.mark.parametrize("use", USES)
def test_a_missing_bucket_is_not_a_missing_object(bucket: Bucket, use: str) -> None:
    with pytest.raises(StorageDenied, match="NoSuchBucket"):
        USES[use](open_storage("s3://no-such-bucket/prefix"))


@pytest.mark.parametrize("use", USES)
def test_refused_credentials_are_reported_at_once_without_retries(
    storage: Storage, bucket: Bucket, use: str
) -> None:
    bucket.proxy.rule = strike(403, "PUT GET HEAD DELETE POST")
    with pytest.raises(StorageDenied, match="403 Forbidden") as denied:
        USES[use](storage)
    assert len(bucket.proxy.struck) == 1
    for secret in (SECRET, SESSION_TOKEN, KEY_ID):
        assert secret not in str(denied.value)
        assert denied.value.__cause__ is None


def test_an_endpoint_without_encryption_is_denied_unless_allowed(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StorageDenied):
        open_storage(bucket.location).exists("x")


def test_a_full_store_is_full(storage: Storage, bucket: Bucket) -> None:
    bucket.proxy.rule = strike(507, "PUT")
    with pytest.raises(StorageFull):
        storage.put("x", SMALL)


def test_a_store_that_does_not_respond_can_be_opened(storage: Storage, bucket: Bucket) -> None:
    bucket.proxy.rule = strike(503, "PUT GET HEAD DELETE POST")
    storage = open_usable_storage(bucket.location)
    bucket.proxy.rule = pass_all
    storage.put("x", SMALL)
    assert bucket.keys == ["x"]
