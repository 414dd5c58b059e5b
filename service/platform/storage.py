"""Objects by key, in a folder, in memory or in an S3-compatible store (obstore behind one class).

Keys never contain a user's text. Errors of a store become `StorageError` or a subclass; their text names the
key and the reason, never the store's full response, which may contain credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING

import obstore
import structlog
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

from grpo_engine.files.atomic_folder import fsync
from grpo_engine.process.fault_points import fault_point

if TYPE_CHECKING:
    from obstore.store import RetryConfig

logger = structlog.get_logger()
CHUNK_BYTES = 2**20
RANGE_BYTES = 4 * CHUNK_BYTES
"""Bytes per request. Small, because stores close the connection of a reader that takes half a minute."""
MAX_PARTS_AT_ONCE = 4
DATASETS = "files"
"""First part of the keys of datasets. Other files may be in the folder of a mount point."""
GROUP_ONLY = 0o770
"""Largest mode of a file or folder: with the umask of Celery or of uvicorn, all users could read it."""
RETRIES: RetryConfig = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=1)},
}
"""Few, short retries, because clients wait during uploads and the worker has its own retries."""
_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._=-]*"
_DENIALS = (PermissionDeniedError, UnauthenticatedError, PermissionError)
KEY_PATTERN = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_DISK_FULL = re.compile(
    r"no space left|disk quota exceeded|os error (28|122)\b|507 Insufficient|QuotaExceeded", re.IGNORECASE
)
_MISCONFIGURED = re.compile(r"<Code>NoSuchBucket</Code>|HTTP error: builder error")
_STATUS_AND_BODY = re.compile(r"(\d{3} [A-Za-z ]+): .*", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")


class StorageError(Exception):
    """The store failed."""

    public = "the storage does not answer"
    """Message for users; the exception's own text is for the log."""


class ObjectMissing(StorageError):
    """Nothing is stored under this key."""

    public = "an object is missing in the storage"


class StorageFull(StorageError):
    """No space is left."""


class StorageDenied(StorageError):
    """Wrong credentials or endpoint, no permission or no such bucket: retrying does not help."""

    public = "the storage denies access"


class Storage:
    """Objects by key. A put becomes visible only when it is complete."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = store.prefix if isinstance(store, LocalStore) else None

    def put(self, key: str, content: Path | IO[bytes] | bytes) -> None:
        """Store a file, the rest of an open file, or bytes."""
        try:
            with _translated(key):
                fault_point("storage.put")
                _checked(key)
                if self._root is not None:
                    _make_folders(self._root, key)
                obstore.put(self._store, key, content, max_concurrency=MAX_PARTS_AT_ONCE)
                if self._root is not None:
                    with suppress(OSError):  # a file system without modes
                        (self._root / key).chmod((self._root / key).stat().st_mode & GROUP_ONLY)
                    # to disk before the row is committed, so that no row refers to bytes that a crash loses
                    for written in (self._root / key, (self._root / key).parent):
                        fsync(written)
        except ObjectMissing as error:
            # the response to completing a large upload was lost, and completing it again failed
            raise StorageError(f"{key}: the store lost the upload") from error

    def get_bytes(self, key: str) -> bytes:
        """The whole content. Raises ObjectMissing."""
        with _translated(key):
            return bytes(obstore.get(self._store, _checked(key)).bytes())

    def download(self, key: str, path: Path) -> None:
        """Write the content to `path`, which appears only when it is complete. Raises ObjectMissing."""
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
        """The bytes from `start` up to `end` (exclusive; None: to the last one), in pieces of a few MiB.

        Raises ObjectMissing at once, not with the first piece. Each piece is a request of its own, so that a
        slow reader keeps none open.
        """
        end = self.size(key) if end is None else end
        if start >= end:
            return iter(())
        first = self._range(key, start, min(end, start + RANGE_BYTES))
        return self._pieces(key, first, start + RANGE_BYTES, end)

    def lines(self, key: str) -> Iterator[bytes]:
        """The lines, as `split_lines` of the content. Raises ObjectMissing at once."""
        return split_lines(self.stream(key))

    def size(self, key: str) -> int:
        """Number of bytes. Raises ObjectMissing."""
        with _translated(key):
            try:
                return obstore.head(self._store, _checked(key))["size"]
            except FileNotFoundError:
                # a response to HEAD has no body that distinguishes a missing object from a missing bucket
                return obstore.get(self._store, key).meta["size"]

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except ObjectMissing:
            return False
        return True

    def listed(self) -> Iterator[tuple[str, int, datetime]]:
        """Key, number of bytes and time of every object, in no order."""
        with _translated("all objects"):
            for objects in obstore.list(self._store):
                yield from ((each["path"], each["size"], each["last_modified"]) for each in objects)

    def check(self) -> None:
        """Raise StorageError if the storage does not respond or denies access."""
        if self._root is not None and not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise StorageError(f"{self._root} is not a folder that this process may write to")
        self.exists("probe/none")

    def is_unmounted(self) -> bool:
        """Whether it is a folder without any dataset although one is expected, or is missing."""
        return self._root is not None and not os.path.isdir(self._root / DATASETS)

    def delete(self, key: str) -> None:
        """Remove the object, if there is one."""
        try:
            with _translated(key):
                obstore.delete(self._store, _checked(key))
        except ObjectMissing:
            return

    def discard(self, keys: Iterable[str]) -> None:
        """Remove objects whose rows are deleted, up to the first failure, which is only logged.

        The rows are gone, so a repeated request could not delete the rest, but `grpo orphans` can.
        """
        for key in keys:
            try:
                self.delete(key)
            except StorageError as error:
                logger.warning("orphans left", key=key, error=str(error))
                return

    def _range(self, key: str, start: int, end: int) -> bytes:
        with _translated(key):
            piece = bytes(obstore.get_range(self._store, _checked(key), start=start, end=end))
        if len(piece) != end - start:
            raise StorageError(f"{key}: it ends before byte {end}")
        return piece

    def _pieces(self, key: str, first: bytes, start: int, end: int) -> Iterator[bytes]:
        yield first
        for position in range(start, end, RANGE_BYTES):
            yield self._range(key, position, min(end, position + RANGE_BYTES))


def _make_folders(root: Path, key: str) -> None:
    folder = root
    for name in key.split("/")[:-1]:
        folder /= name
        folder.mkdir(GROUP_ONLY, parents=True, exist_ok=True)


def open_storage(location: str) -> Storage:
    """Storage at `file:///folder` (created if missing), `memory:///` or `s3://bucket/prefix`.

    S3 credentials, region and endpoint come from the usual `AWS_…` variables.
    Raises ValueError or StorageError for an unusable location.
    """
    if location.startswith("file://"):
        folder = Path(location.removeprefix("file://"))
        if not folder.is_absolute():
            raise ValueError(f"{location}: a storage folder needs an absolute path, as in file:///srv/grpo")
        with _translated(location):
            folder.mkdir(GROUP_ONLY, parents=True, exist_ok=True)
            return Storage(LocalStore(folder))
    with _translated(location):
        return Storage(from_url(location, retry_config=RETRIES))


def open_usable_storage(location: str) -> Storage:
    """`open_storage` and one check. Raises StorageDenied; a storage that does not respond is only logged."""
    storage = open_storage(location)
    if denied := _denial(storage):
        raise StorageDenied(f"GRPO_STORAGE_URL={location} cannot be used: {denied}")
    return storage


def is_usable(storage: Storage) -> bool:
    """Whether the storage is mounted and admits this process; one that does not respond counts as usable."""
    return not storage.is_unmounted() and _denial(storage) is None


def _denial(storage: Storage) -> StorageDenied | None:
    try:
        storage.check()
    except StorageDenied as denied:
        return denied
    except StorageError as error:
        logger.warning("storage does not respond", error=str(error))
    return None


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


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        # without `from error`, because logs show causes, too
        raise _kind(error)(f"{key}: {_reason(error)}") from None


def _kind(error: Exception) -> type[StorageError]:
    if _MISCONFIGURED.search(str(error)) or isinstance(error, _DENIALS):
        return StorageDenied
    if isinstance(error, FileNotFoundError):
        return ObjectMissing
    return StorageFull if _DISK_FULL.search(str(error)) else StorageError


def _reason(error: Exception) -> str:
    """The reason, with only the status and code of the store's response."""
    text = str(error).partition("\n\nDebug source:")[0]
    reason = _STATUS_AND_BODY.sub(r"\1", text).strip()
    code = _CODE.search(text)
    return f"{reason} ({code[1]})" if code else reason
