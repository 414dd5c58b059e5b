"""Storage in a folder, in memory and in S3: objects are complete, and never outside the root."""

import hashlib
import io
import os
import stat
import tempfile
from pathlib import Path

import pytest

from grpo_engine.contract.manifest import sha256_of
from service.platform.storage import ObjectMissing, Storage, StorageError, open_storage, split_lines

CONTENT = bytes(range(256)) * 40_000
"""Three pieces; two parts of an upload."""


@pytest.fixture(params=["file", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        return open_storage(request.getfixturevalue("bucket").location)
    return open_storage("memory:///" if request.param == "memory" else f"file://{tmp_path}/a store")


def test_bytes_come_back(storage: Storage) -> None:
    storage.put("files/file-1", b"content")
    assert storage.get_bytes("files/file-1") == b"content"
    assert (storage.size("files/file-1"), storage.exists("files/file-1")) == (7, True)


def test_a_file_comes_back_in_pieces(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    storage.put("jobs/1/results/x.tar.gz", path)
    pieces = list(storage.stream("jobs/1/results/x.tar.gz"))
    assert b"".join(pieces) == CONTENT
    assert all(isinstance(piece, bytes) for piece in pieces)


def test_an_open_file_is_stored(storage: Storage) -> None:
    with tempfile.SpooledTemporaryFile(max_size=1000) as file:
        file.write(CONTENT)
        file.seek(0)
        storage.put("files/file-1", file)
    assert storage.get_bytes("files/file-1") == CONTENT


@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 300), (300, None), (len(CONTENT) - 1, None)])
def test_a_range_is_streamed(storage: Storage, start: int, end: int | None) -> None:
    storage.put("x", CONTENT)
    assert b"".join(storage.stream("x", start, end)) == CONTENT[start:end]


def test_an_empty_range_and_an_empty_object_stream_nothing(storage: Storage) -> None:
    storage.put("empty", b"")
    storage.put("x", b"abc")
    assert [*storage.stream("empty"), *storage.stream("x", 3), *storage.stream("x", 2, 2)] == []
    assert storage.get_bytes("empty") == b""


def test_a_second_put_replaces_the_first(storage: Storage) -> None:
    storage.put("x", b"longer")
    storage.put("x", b"new")
    assert storage.get_bytes("x") == b"new"


def test_a_line_may_span_several_pieces() -> None:
    assert list(split_lines([b"one\ntwo\r\n\nlast"])) == [b"one", b"two\r", b"", b"last"]
    assert list(split_lines([b"ab", b"c\nd", b"", b"ef\n", b"g"])) == [b"abc", b"def", b"g"]


def test_a_last_line_feed_starts_no_line() -> None:
    assert list(split_lines([b"a\n", b"b\n"])) == [b"a", b"b"]


def test_a_download_is_complete(storage: Storage, tmp_path: Path) -> None:
    storage.put("x", CONTENT)
    target = tmp_path / "deep" / "target"
    storage.download("x", target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_download_that_fails_leaves_the_old_file(storage: Storage, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    with pytest.raises(ObjectMissing):
        storage.download("nothing", target)
    assert target.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*.partial"))


def test_a_missing_object_is_reported_at_once(storage: Storage) -> None:
    for read in (storage.get_bytes, storage.stream, storage.size):
        with pytest.raises(ObjectMissing):
            read("files/nothing")
    with pytest.raises(ObjectMissing):
        storage.stream("files/nothing", 3, 5)
    assert storage.exists("files/nothing") is False


def test_deleting_twice_is_fine(storage: Storage) -> None:
    storage.put("x", b"1")
    storage.delete("x")
    storage.delete("x")
    assert storage.exists("x") is False


@pytest.mark.parametrize(
    "key",
    ["", "/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", ".hidden", "a\x00b", "ä", "a b", "x\n"],
)
def test_no_key_leads_out_of_the_root(storage: Storage, key: str) -> None:
    for use in (storage.get_bytes, storage.size, storage.delete, lambda key: storage.put(key, b"")):
        with pytest.raises(ValueError, match="is not a storage key"):
            use(key)


def test_an_interrupted_put_shows_nothing(tmp_path: Path) -> None:
    class Interrupted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    storage = open_storage(f"file://{tmp_path}")
    storage.put("x", b"old")
    with pytest.raises(StorageError):
        storage.put("x", Interrupted(b"half"))
    assert storage.get_bytes("x") == b"old"


def test_users_outside_of_the_group_cannot_read_a_folder(tmp_path: Path) -> None:
    """Celery and uvicorn keep the umask of their shell."""
    root = tmp_path / "store"
    umask = os.umask(0o022)
    try:
        open_storage(f"file://{root}").put("jobs/1/results/x.tar.gz", b"weights")
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert modes.pop("x.tar.gz") == 0o640
    assert modes == dict.fromkeys(("store", "jobs", "1", "results"), 0o750)


def test_a_folder_has_an_absolute_path() -> None:
    with pytest.raises(ValueError, match="absolute path"):
        open_storage("file://relative")


def test_the_digest_is_sha256(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(CONTENT)
    assert sha256_of(path) == hashlib.sha256(CONTENT).hexdigest()
