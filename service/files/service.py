"""What happens to files: checked, stored, recorded, and removed in the order that loses nothing.

Upload: content into storage, then the row, then the answer. Delete: the row, then the content.
No transaction is open while bytes move.
"""

from __future__ import annotations

from typing import BinaryIO

import structlog

from grpo_engine.process.fault_points import fault_point
from service.files import repository
from service.files.contents import DatasetDigest, check_dataset
from service.files.schemas import FileRead, UploadFields
from service.jobs.store.repository import is_result, stored_bytes
from service.platform import audit
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.errors import InvalidRequest, NotFound, PayloadTooLarge
from service.platform.ids import new_id
from service.platform.locks import lock_tenant
from service.platform.principal import Principal
from service.platform.storage import Storage
from service.platform.tables.core import File
from service.settings import Settings
from service.web.auth import require_good_key
from service.web.limits import check_stored_bytes
from service.web.pagination import Page, page_of, unknown_cursor

log = structlog.get_logger()

MAX_PURGED = 100


class Files:
    """The files of one deployment, as one principal sees them in one request."""

    def __init__(
        self, database: Database, storage: Storage, settings: Settings, principal: Principal, request_id: str
    ) -> None:
        self._database = database
        self._storage = storage
        self._settings = settings
        self._principal = principal
        self._request_id = request_id

    def upload(self, file: BinaryIO, num_bytes: int, filename: str, fields: UploadFields) -> FileRead:
        """Store a dataset. If it raises, nothing is stored: InvalidRequest for bytes that no job can read,
        TooManyRequests if the tenant's storage is full, Unauthorized if the key was revoked meanwhile."""
        if num_bytes > self._settings.max_upload_bytes:
            limit = f"the limit of {self._settings.max_upload_bytes} bytes"
            raise PayloadTooLarge(f"file: its {num_bytes} bytes exceed {limit}.", param="file")
        digest = check_dataset(file, max_rows=self._settings.max_rows)
        self._purge_expired()
        file_id = new_id("file")
        key = f"files/{file_id}"
        self._storage.put_open_file(key, file)
        fault_point("upload.stored")
        try:
            return self._record(file_id, key, filename, digest, fields)
        except Exception:
            # A connection may be lost after the commit: only what is surely not recorded is removed.
            with self._database.reading() as session:
                is_recorded = repository.is_recorded(session, file_id)
            if not is_recorded:
                self._storage.delete(key)
            raise

    def _record(
        self, file_id: str, key: str, filename: str, digest: DatasetDigest, fields: UploadFields
    ) -> FileRead:
        row = File(
            id=file_id,
            tenant=self._principal.tenant,
            filename=filename,
            purpose=fields.purpose,
            num_bytes=digest.num_bytes,
            sha256=digest.sha256,
            storage_key=key,
        )
        if fields.expires_after is not None:
            row.expires_at = db_now() + fields.expires_after.seconds
        with self._database.transaction() as session:
            lock_tenant(session, row.tenant)
            require_good_key(session, self._principal)
            check_stored_bytes(stored_bytes(session, row.tenant), digest.num_bytes, self._settings)
            session.add(row)
            session.flush()
            audit.record(session, self._principal, "file.create", file_id, self._request_id)
            session.refresh(row)
            answer = to_read(row)
        fault_point("upload.committed")
        return answer

    def find(self, file_id: str) -> File:
        """The row. Raises NotFound."""
        with self._database.reading() as session:
            return _found(repository.find(session, self._principal.tenant, file_id), file_id)

    def page(
        self, *, purpose: str | None, after: str | None, limit: int, order: repository.Order
    ) -> Page[FileRead]:
        """One page of the tenant's files. Raises NotFound for an unknown `after`."""
        tenant = self._principal.tenant
        with self._database.reading() as session:
            cursor = repository.find_cursor(session, tenant, after) if after is not None else None
            if after is not None and cursor is None:
                raise unknown_cursor(after)
            rows = repository.page(session, tenant, purpose=purpose, after=cursor, limit=limit, order=order)
            return page_of([to_read(row) for row in rows], limit)

    def delete(self, file_id: str) -> None:
        """Remove a file. Raises NotFound, and InvalidRequest while an unfinished job needs it."""
        with self._database.transaction() as session:
            # A job that is being created may be about to need it.
            lock_tenant(session, self._principal.tenant)
            row = _found(repository.find(session, self._principal.tenant, file_id), file_id)
            if is_result(session, file_id):
                message = f"{file_id} is a job's result. Delete the job's model to delete its weights."
                raise InvalidRequest(message, param="file_id", code="file_is_result")
            if job_id := repository.unfinished_user(session, row):
                raise InvalidRequest(
                    f"{file_id} is used by the unfinished job {job_id}. Cancel the job first.",
                    param="file_id",
                    code="file_in_use",
                )
            row.deleted_at = db_now()  # type: ignore[assignment]
            audit.record(session, self._principal, "file.delete", file_id, self._request_id)
            key = row.storage_key
        self._storage.delete(key)

    def _purge_expired(self) -> None:
        """Content of the tenant's expired files, of which no unfinished job needs any."""
        with self._database.transaction() as session:
            lock_tenant(session, self._principal.tenant)
            rows = repository.expired(session, self._principal.tenant, MAX_PURGED)
            unused = [row for row in rows if repository.unfinished_user(session, row) is None]
            keys = [row.storage_key for row in unused]
            for row in unused:
                row.deleted_at = db_now()  # type: ignore[assignment]
                audit.record(session, self._principal, "file.expire", row.id, self._request_id)
        for key in keys:
            self._storage.delete(key)


def to_read(row: File) -> FileRead:
    """OpenAI's file object."""
    return FileRead(
        id=row.id,
        bytes=row.num_bytes,
        created_at=int(row.created_at),
        expires_at=None if row.expires_at is None else int(row.expires_at),
        filename=row.filename,
        purpose=row.purpose,
        sha256=row.sha256,
    )


def _found(row: File | None, file_id: str) -> File:
    if row is None:
        raise NotFound(f"There is no file {file_id}.", param="file_id")
    return row
