"""OpenAI's files API: `/v1/files`."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.files.repository import Order
from service.files.schemas import UPLOAD_FORM, FileDeleted, FileRead, parse_form
from service.files.service import Files, to_read
from service.web.auth import Reader, Writer
from service.web.dependencies import DatabaseDep, RequestId, SettingsDep, StorageDep
from service.web.downloads import file_response
from service.web.pagination import After, Page

MAX_FORM_FIELDS = 16
PageLimit = Annotated[int, Query(ge=1, le=10_000, description="Items of one page.")]
OrderQuery = Annotated[Order, Query(description="By time of creation: newest (desc) or oldest (asc) first.")]
Purpose = Annotated[str | None, Query(description="Only files of this purpose.")]
FileId = Annotated[str, Path(description="Id of the file, `file-…`.")]

router = APIRouter(prefix="/v1/files", tags=["files"])


def _for_reader(
    principal: Reader,
    database: DatabaseDep,
    storage: StorageDep,
    settings: SettingsDep,
    request_id: RequestId,
) -> Files:
    return Files(database, storage, settings, principal, request_id)


def _for_writer(
    principal: Writer,
    database: DatabaseDep,
    storage: StorageDep,
    settings: SettingsDep,
    request_id: RequestId,
) -> Files:
    return Files(database, storage, settings, principal, request_id)


ReadFiles = Annotated[Files, Depends(_for_reader)]
WriteFiles = Annotated[Files, Depends(_for_writer)]


@router.post("", openapi_extra=UPLOAD_FORM)
async def create_file(request: Request, files: WriteFiles) -> FileRead:
    """JSONL or Parquet; what the rows mean is checked when a job is created with them."""
    # read here, and not as a parameter: only who has a key can send us bytes
    async with request.form(max_files=1, max_fields=MAX_FORM_FIELDS) as form:
        upload, name, fields = parse_form(form)
        state, given = request.app.state, (upload.file, upload.size or 0, name, fields)
        async with state.uploads_per_key.of(request):
            return await to_thread.run_sync(files.upload, *given, limiter=state.upload_threads)


@router.get("")
def list_files(
    files: ReadFiles,
    after: After = None,
    limit: PageLimit = 10_000,
    order: OrderQuery = "desc",
    purpose: Purpose = None,
) -> Page[FileRead]:
    """Yours and your jobs' results, newest first (`order=asc`: oldest first)."""
    return files.page(purpose=purpose, after=after, limit=limit, order=order)


@router.get("/{file_id}")
def retrieve_file(file_id: FileId, files: ReadFiles) -> FileRead:
    """Name, size, purpose and SHA-256."""
    return to_read(files.find(file_id))


@router.get("/{file_id}/content", response_class=Response)
def read_content(request: Request, file_id: FileId, files: ReadFiles, storage: StorageDep) -> Response:
    """The bytes; ETag is their SHA-256, and Range is honoured."""
    row = files.find(file_id)
    return file_response(
        request, storage, row.storage_key, size=row.num_bytes, sha256=row.sha256, filename=row.filename
    )


@router.delete("/{file_id}")
def delete_file(file_id: FileId, files: WriteFiles) -> FileDeleted:
    """Refused while a job that has not ended needs the file."""
    files.delete(file_id)
    return FileDeleted(id=file_id)
