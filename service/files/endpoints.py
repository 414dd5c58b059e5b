"""OpenAI's files API: `/v1/files`."""

from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.files.repository import Order
from service.files.schemas import UPLOAD_FORM, FileDeleted, FilePreview, FileRead, FileUpdate, parse_form
from service.files.service import Files
from service.platform.tables.core import MODEL_CHARACTERS
from service.web.auth import Reader, Writer
from service.web.dependencies import from_state
from service.web.downloads import file_response
from service.web.pagination import After, Page
from service.web.per_key_concurrency import PerKeyConcurrency

MAX_FORM_FIELDS = 16
PageLimit = Annotated[int, Query(ge=1, le=10_000, description="Items of one page.")]
OrderQuery = Annotated[Order, Query(description="By time of creation: newest (desc) or oldest (asc) first.")]
PreviewLimit = Annotated[int, Query(ge=1, le=100, description="Rows to show.")]
PreviewModel = Annotated[
    str | None,
    Query(
        max_length=MODEL_CHARACTERS,
        description="Model whose tokenizer and chat template count the tokens.",
    ),
]
Purpose = Annotated[str | None, Query(description="Only files of this purpose.")]
FileId = Annotated[str, Path(description="Id of the file, `file-…`.")]

router = APIRouter(prefix="/v1/files", tags=["files"])
uploads = APIRouter(prefix="/v1/files", tags=["files"])
"""The only route with large bodies."""


FilesDep = Annotated[Files, Depends()]
UploadsPerKey = Annotated[PerKeyConcurrency, Depends(from_state("uploads_per_key"))]
UploadThreads = Annotated[CapacityLimiter, Depends(from_state("upload_threads"))]


@uploads.post("", openapi_extra=UPLOAD_FORM)
async def upload_file(
    request: Request, principal: Writer, files: FilesDep, per_key: UploadsPerKey, threads: UploadThreads
) -> FileRead:
    """Upload JSONL in UTF-8; what its rows contain is checked when a job is created with the file.

    If the same bytes are already stored with the same purpose, that file is returned, with its id and name.
    """
    # read here, not as a parameter, so that bytes are read only after authentication
    async with request.form(max_files=1, max_fields=MAX_FORM_FIELDS) as form:
        upload, name, fields = parse_form(form)
        given = (principal, upload.file, upload.size or 0, name, fields)
        async with per_key.of(request):
            return await to_thread.run_sync(files.upload, *given, limiter=threads)


@router.get("")
def list_files(
    principal: Reader,
    files: FilesDep,
    after: After = None,
    limit: PageLimit = 10_000,
    order: OrderQuery = "desc",
    purpose: Purpose = None,
) -> Page[FileRead]:
    """Uploaded files and results of jobs, newest first (`order=asc`: oldest first)."""
    return files.page(principal.tenant, purpose=purpose, after=after, limit=limit, order=order)


@router.get("/{file_id}")
def retrieve_file(file_id: FileId, principal: Reader, files: FilesDep) -> FileRead:
    """Name, size, purpose and SHA-256."""
    return FileRead.model_validate(files.find(principal.tenant, file_id))


@router.get("/{file_id}/content", response_class=Response)
def download_file(request: Request, file_id: FileId, principal: Reader, files: FilesDep) -> Response:
    """The content; ETag is its SHA-256, and Range is supported."""
    row = files.find(principal.tenant, file_id)
    return file_response(
        request, files.storage, row.storage_key, size=row.num_bytes, sha256=row.sha256, filename=row.filename
    )


@router.get("/{file_id}/preview")
def preview_file(
    file_id: FileId, principal: Reader, files: FilesDep, limit: PreviewLimit = 20, model: PreviewModel = None
) -> FilePreview:
    """The first rows of a dataset, and the lengths of its rows in tokens of a model."""
    return files.preview(principal.tenant, file_id, limit=limit, model=model)


@router.patch("/{file_id}")
def rename_file(file_id: FileId, body: FileUpdate, principal: Writer, files: FilesDep) -> FileRead:
    """Rename a dataset."""
    return files.rename(principal, file_id, body.filename)


@router.delete("/{file_id}")
def delete_file(file_id: FileId, principal: Writer, files: FilesDep) -> FileDeleted:
    """Refused while an unfinished job needs the file."""
    files.delete(principal, file_id)
    return FileDeleted(id=file_id)
