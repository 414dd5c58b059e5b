"""Files by key, in a folder, in memory or in an S3-compatible store (obstore behind one class).

Boundary: keys are ours (`files/file-…`), never a user's text; no tables and no HTTP, so that the worker
uses it too. What it raises for a store's troubles is `StorageError` and its two children.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from grpo_engine.faults import fault_point

CHUNK_BYTES = 2**20
_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._=-]*"
KEY_PATTERN = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_DISK_FULL = re.compile(r"no space left|disk quota exceeded|os error (28|122)\b", re.IGNORECASE)


class StorageError(Exception):
    """The store cannot do it now."""


class ObjectMissing(StorageError):
    """Nothing is stored under this key."""


class StorageFull(StorageError):
    """No space is left."""


class Storage:
    """Objects under keys; a put is seen whole or not at all."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = store.prefix if isinstance(store, LocalStore) else None

    def put_file(self, key: str, path: Path) -> None:
        """Store a file's content."""
        self._put(key, path)

    def put_open_file(self, key: str, file: IO[bytes]) -> None:
        """Store an open file's content, from its start."""
        file.seek(0)
        self._put(key, file)

    def put_bytes(self, key: str, data: bytes) -> None:
        self._put(key, data)

    def get_bytes(self, key: str) -> bytes:
        """The whole content. Raises ObjectMissing."""
        with _translated(key):
            return bytes(obstore.get(self._store, _checked(key)).bytes())

    def download(self, key: str, path: Path) -> None:
        """Write the content to `path`, which appears complete or not at all. Raises ObjectMissing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with partial.open("wb") as file:
                file.writelines(self.stream(key))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` up to `end` (exclusive; None: to the last one), in pieces of about 1 MiB.

        Raises ObjectMissing at once, before the first piece is asked for.
        """
        end = self.size(key) if end is None else end
        if start >= end:
            return iter(())
        with _translated(key):
            result = obstore.get(self._store, _checked(key), options={"range": (start, end)})
        return _pieces(key, result.stream(min_chunk_size=CHUNK_BYTES))

    def lines(self, key: str) -> Iterator[bytes]:
        """The lines without their line feeds. Raises ObjectMissing at once."""
        return split_lines(self.stream(key))

    def size(self, key: str) -> int:
        """Number of bytes. Raises ObjectMissing."""
        with _translated(key):
            return obstore.head(self._store, _checked(key))["size"]

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except ObjectMissing:
            return False
        return True

    def check(self) -> None:
        """Raises StorageError where it does not answer; asks for nothing that is there."""
        if self._root is not None and not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise StorageError(f"{self._root} is no folder that this process may write to")
        self.exists("probe/none")

    def delete(self, key: str) -> None:
        """Remove the object; where there is none, nothing happens."""
        try:
            with _translated(key):
                obstore.delete(self._store, _checked(key))
        except ObjectMissing:
            return

    def _put(self, key: str, content: Path | IO[bytes] | bytes) -> None:
        with _translated(key):
            fault_point("storage.put")
            obstore.put(self._store, _checked(key), content)
            if self._root is not None:
                _sync(self._root / key)


def open_storage(location: str) -> Storage:
    """Storage at `file:///folder` (made where it does not exist), `memory:///` or `s3://bucket/prefix`.

    An S3 store takes its credentials, region and endpoint from the usual `AWS_…` variables.
    Raises ValueError or StorageError where there can be none.
    """
    if location.startswith("file://"):
        folder = Path(location.removeprefix("file://"))
        if not folder.is_absolute():
            raise ValueError(f"{location}: a storage folder has an absolute path, as in file:///srv/grpo")
        with _translated(location):
            return Storage(LocalStore(folder, mkdir=True))
    with _translated(location):
        return Storage(from_url(location))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of any size → lines without their line feeds; the last one needs none."""
    rest = bytearray()
    for piece in pieces:
        head, *tail = piece.split(b"\n")
        rest += head
        for line in tail:
            yield bytes(rest)
            rest = bytearray(line)
    if rest:
        yield bytes(rest)


def _checked(key: str) -> str:
    if not KEY_PATTERN.fullmatch(key):
        raise ValueError(f"{key!r} is not a storage key")
    return key


def _pieces(key: str, stream: Iterable[bytes]) -> Iterator[bytes]:
    with _translated(key):
        for piece in stream:
            yield bytes(piece)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(key) from error
    except (BaseError, OSError) as error:
        kind = StorageFull if _DISK_FULL.search(str(error)) else StorageError
        # what follows the first line is obstore's inside, with URLs and headers in it
        raise kind(f"{key}: {str(error).partition(chr(10))[0]}") from error


def _sync(path: Path) -> None:
    """A row must not outlive the bytes it points at: they reach the disk before the row does."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
