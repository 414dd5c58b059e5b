"""Orphans: stored objects without a row, left by processes killed between an upload and its row.

Boundary: reads rows and lists objects; the `grpo orphans` command deletes them.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint, File

YOUNGEST = timedelta(days=1)
"""Younger objects are ignored, because their row may not be written yet."""


class ForeignStorage(Exception):
    """No stored object has a row: the database probably belongs to another storage."""


def find_orphans(database: Database, storage: Storage, older_than: timedelta = YOUNGEST) -> dict[str, int]:
    """Key and number of bytes of old objects without a row, sorted by key.

    Raises ForeignStorage, StorageError.
    """
    before = datetime.now(UTC) - older_than
    stored = list(storage.listed())
    old = {key: num_bytes for key, num_bytes, at in stored if at < before}
    with database.reading() as session:  # read after the list, to find rows that were written meanwhile
        named = set(_named(session))
    if old and named.isdisjoint(key for key, _, _ in stored):
        raise ForeignStorage("no stored object has a row in the database: does it belong to this storage?")
    return {key: num_bytes for key, num_bytes in sorted(old.items()) if key not in named}


def _named(session: Session) -> Iterator[str]:
    """Keys of all existing objects; a deleted file keeps its row but not its content."""
    yield from session.scalars(select(File.storage_key).where(File.deleted_at.is_(None)))
    for checkpoint in session.scalars(select(Checkpoint)):
        yield from checkpoint.storage_keys
