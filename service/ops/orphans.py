"""Stored objects that no row names: what a process left that was killed between an upload and its row.

Boundary: reads rows and lists objects; whoever deletes them decides so (`cli/orphans.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint, File

YOUNGEST = timedelta(days=1)
"""A younger object may get its row yet."""


@dataclass(frozen=True)
class Orphan:
    """An object that nobody can reach."""

    key: str
    num_bytes: int


class AnothersStorage(Exception):
    """The database names nothing of what is stored: it is probably not the one that belongs to it."""


def find_orphans(database: Database, storage: Storage, older_than: timedelta = YOUNGEST) -> list[Orphan]:
    """Sorted by key. Raises AnothersStorage, StorageError."""
    before = datetime.now(UTC) - older_than
    stored = list(storage.listed())
    old = {key: num_bytes for key, num_bytes, at in stored if at < before}
    with database.reading() as session:  # asked last: a key that has its row by now is none
        named = set(_named(session))
    if old and named.isdisjoint(key for key, _, _ in stored):
        raise AnothersStorage("the database names nothing of what is stored: is it the one of this storage?")
    return [Orphan(key, num_bytes) for key, num_bytes in sorted(old.items()) if key not in named]


def _named(session: Session) -> Iterator[str | None]:
    """Keys of all that is there: a deleted file's row stays, its content does not."""
    yield from session.scalars(select(File.storage_key).where(File.deleted_at.is_(None)))
    yield from session.scalars(select(Checkpoint.state_key))
    yield from session.scalars(select(Checkpoint.adapter_key))
