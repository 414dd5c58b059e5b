"""Uploads, lists and deletes files in an order that loses nothing.

Upload: content into storage, then the row, then the response. Delete: the row, then the content.
No transaction is open while bytes move.
"""

from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from sqlalchemy.orm import Session

from grpo_engine.process.fault_points import fault_point
from service.files import repository
from service.files.contents import check_dataset
from service.files.preview import count_rows, first_rows, token_lengths
from service.files.schemas import FilePreview, FileRead, UploadFields
from service.jobs.store.lineage import lineage_of
from service.jobs.store.repository import is_result, stored_bytes
from service.platform import audit
from service.platform.clock import db_now, read_clock
from service.platform.db import lock_tenant
from service.platform.errors import InvalidRequest, NotFound, PayloadTooLarge
from service.platform.ids import new_id
from service.platform.pages import unknown_cursor
from service.platform.principal import Principal
from service.platform.storage import ObjectMissing
from service.platform.tables.core import File
from service.platform.token_counting import ModelText, ModelTextError, load_model_text
from service.web.auth import require_valid_key
from service.web.dependencies import CatalogDep, DatabaseDep, SettingsDep, StorageDep
from service.web.downloads import content_missing
from service.web.limits import check_stored_bytes
from service.web.pagination import Page, page_of

MAX_PURGED = 100


@dataclass(frozen=True)
class Files:
    """The files of one deployment."""

    database: DatabaseDep
    storage: StorageDep
    settings: SettingsDep
    catalog: CatalogDep

    def upload(
        self, principal: Principal, file: BinaryIO, num_bytes: int, filename: str, fields: UploadFields
    ) -> FileRead:
        """Store a dataset, or find the one with the same bytes. If it raises, nothing is stored:
        InvalidRequest for bytes that no job can read, TooManyRequests if the tenant's storage is full,
        Unauthorized if the key was revoked meanwhile."""
        if num_bytes > self.settings.max_upload_bytes:
            limit = f"the limit of {self.settings.max_upload_bytes} bytes"
            raise PayloadTooLarge(f"file: its {num_bytes} bytes exceed {limit}.", param="file")
        digest = check_dataset(file, max_rows=self.settings.max_rows)
        self._purge_expired(principal)
        file_id = new_id("file")
        row = File(
            id=file_id,
            tenant=principal.tenant,
            filename=filename,
            purpose=fields.purpose,
            num_bytes=digest.num_bytes,
            sha256=digest.sha256,
            num_rows=digest.num_rows,
            storage_key=f"files/{file_id}",
        )
        if (known := self._known(principal, row, fields, file)) is not None:
            return known
        if fields.expires_after is not None:
            row.expires_at = db_now() + fields.expires_after.seconds
        key = row.storage_key
        file.seek(0)
        self.storage.put(key, file)
        fault_point("upload.stored")
        try:
            answer = self._record(principal, row, fields)
        except Exception:
            # The connection may have been lost after the commit: keep the content unless there is no row.
            with self.database.reading() as session:
                is_recorded = session.get(File, file_id) is not None
            if not is_recorded:
                self.storage.discard([key])
            raise
        if answer.id != file_id:
            self.storage.discard([key])
        return answer

    def _known(
        self, principal: Principal, row: File, fields: UploadFields, file: BinaryIO
    ) -> FileRead | None:
        """The file with the same content, which is stored again if the storage lost it.

        None: there is none, or it was deleted meanwhile.
        """
        with self.database.transaction() as session:
            lock_tenant(session, principal.tenant)
            require_valid_key(session, principal)
            if (answer := _adopted(session, row, fields)) is None:
                return None
            key = _require(session, principal.tenant, answer.id).storage_key
        if self.storage.exists(key):
            return answer
        file.seek(0)
        self.storage.put(key, file)
        with self.database.reading() as session:
            if repository.find(session, principal.tenant, answer.id) is not None:
                return answer
        self.storage.discard([key])
        return None

    def _record(self, principal: Principal, row: File, fields: UploadFields) -> FileRead:
        with self.database.transaction() as session:
            lock_tenant(session, principal.tenant)
            require_valid_key(session, principal)
            if (known := _adopted(session, row, fields)) is not None:
                return known  # stored by a concurrent upload
            check_stored_bytes(stored_bytes(session, principal.tenant), row.num_bytes, self.settings)
            session.add(row)
            audit.record(session, principal, "file.create", row.id)
            session.flush()
            answer = FileRead.model_validate(row)
        fault_point("upload.committed")
        return answer

    def find(self, tenant: str, file_id: str) -> File:
        """The row. Raises NotFound."""
        with self.database.reading() as session:
            return _require(session, tenant, file_id)

    def page(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, order: repository.Order
    ) -> Page[FileRead]:
        """One page of the tenant's files. Raises NotFound for an unknown `after`."""
        with self.database.reading() as session:
            cursor = repository.find_cursor(session, tenant, after) if after is not None else None
            if after is not None and cursor is None:
                raise unknown_cursor(after)
            rows = repository.page(session, tenant, purpose=purpose, after=cursor, limit=limit, order=order)
            return page_of([FileRead.model_validate(row) for row in rows], limit)

    def preview(self, tenant: str, file_id: str, *, limit: int, model: str | None) -> FilePreview:
        """The first rows. Raises NotFound, also if the storage lost the content.

        Raises InvalidRequest for a job's result or an unknown model.
        """
        with self.database.reading() as session:
            row = _require(session, tenant, file_id)
            _refuse_result(session, file_id, "Only datasets have a preview.")
            root = lineage_of(session, tenant, model).root if model else None
        text = self._text(root) if root else None
        lines = partial(self.storage.lines, row.storage_key)
        try:
            num_rows = count_rows(lines()) if row.num_rows is None else row.num_rows
            rows = first_rows(lines(), limit)
            tokens = token_lengths(lines(), num_rows, text) if text else None
        except ObjectMissing as error:
            raise content_missing() from error
        columns = list(dict.fromkeys(name for each in rows for name in each))
        return FilePreview(rows=rows, num_rows=num_rows, columns=columns, tokens=tokens)

    def _text(self, model: str) -> ModelText:
        """The model's tokenizer and template. Raises InvalidRequest."""
        entry = self.catalog.find(model)
        if entry is None:
            message = f"model: {model!r} is not in the model catalogue (see GET /v1/models)."
            raise InvalidRequest(message, param="model", code="model_not_found")
        if entry.folder is None:
            message = f"model: {model} is not on the service's machine, so its tokens cannot be counted."
            raise InvalidRequest(message, param="model", code="lengths_unchecked")
        try:
            return load_model_text(entry.folder)
        except ModelTextError as error:
            raise InvalidRequest(f"model: {error}.", param="model", code="lengths_unchecked") from error

    def rename(self, principal: Principal, file_id: str, filename: str) -> FileRead:
        """Rename a dataset. Raises NotFound, and InvalidRequest for a job's result."""
        with self.database.transaction() as session:
            row = _require(session, principal.tenant, file_id)
            _refuse_result(session, file_id, "Only datasets can be renamed.")
            row.filename = filename
            audit.record(session, principal, "file.rename", row.id)
            session.flush()
            return FileRead.model_validate(row)

    def delete(self, principal: Principal, file_id: str) -> None:
        """Remove a file. Raises NotFound, and InvalidRequest while an unfinished job needs it."""
        with self.database.transaction() as session:
            # a job that is being created may be about to need it
            lock_tenant(session, principal.tenant)
            row = _require(session, principal.tenant, file_id)
            _refuse_result(session, file_id, "Delete the job's model to delete its weights.")
            if job_id := repository.unfinished_user(session, row):
                message = f"{file_id} is used by the unfinished job {job_id}. Cancel the job first."
                raise InvalidRequest(message, param="file_id", code="file_in_use")
            _mark_deleted(session, principal, "file.delete", row)
        self.storage.discard([row.storage_key])

    def _purge_expired(self, principal: Principal) -> None:
        """Delete the content of the tenant's expired files that no unfinished job needs."""
        with self.database.transaction() as session:
            lock_tenant(session, principal.tenant)
            rows = repository.expired(session, principal.tenant, MAX_PURGED)
            unused = [row for row in rows if repository.unfinished_user(session, row) is None]
            for row in unused:
                _mark_deleted(session, principal, "file.expire", row)
        self.storage.discard(row.storage_key for row in unused)


def _adopted(session: Session, row: File, fields: UploadFields) -> FileRead | None:
    """The stored file with the content of `row`, kept for the longer of both lifetimes."""
    known = repository.find_equal(session, row)
    if known is None:
        return None
    known.num_rows = row.num_rows  # earlier versions did not count them
    if known.expires_at is not None:
        lifetime = fields.expires_after
        known.expires_at = max(known.expires_at, read_clock(session) + lifetime.seconds) if lifetime else None
    session.flush()
    return FileRead.model_validate(known)


def _refuse_result(session: Session, file_id: str, reason: str) -> None:
    if is_result(session, file_id):
        message = f"{file_id} is a job's result. {reason}"
        raise InvalidRequest(message, param="file_id", code="file_is_result")


def _mark_deleted(session: Session, principal: Principal, action: str, row: File) -> None:
    row.deleted_at = db_now()  # type: ignore[assignment]
    audit.record(session, principal, action, row.id)


def _require(session: Session, tenant: str, file_id: str) -> File:
    """The tenant's file. Raises NotFound."""
    row = repository.find(session, tenant, file_id)
    if row is None:
        raise NotFound(f"There is no file {file_id}.", param="file_id")
    return row
