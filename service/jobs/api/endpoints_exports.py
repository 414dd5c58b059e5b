"""`/v1/fine_tuning/jobs/{id}/exports`: HTTP in, HTTP out; `results/exports.py` has the logic."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from service.jobs.api.dependencies import JobId, WakeupsDep
from service.jobs.api.endpoints_logs import LOG_RESPONSES, LogPage, LogQueryDep
from service.jobs.results.exports import ExportCreate, ExportDeleted, ExportRead, Exports
from service.web.auth import Reader, Writer
from service.web.dependencies import CatalogDep, DatabaseDep, SettingsDep, StorageDep
from service.web.downloads import file_response
from service.web.pagination import Page, page_of

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}/exports", tags=["fine-tuning"])


async def _exports(
    database: DatabaseDep,
    storage: StorageDep,
    catalog: CatalogDep,
    wakeups: WakeupsDep,
    settings: SettingsDep,
) -> Exports:
    return Exports(database, storage, catalog, wakeups, settings)


ExportId = Annotated[str, Path(description="Id of the export, `ftexport-…`.")]
ExportsDep = Annotated[Exports, Depends(_exports)]


KNOWN = {"model": ExportRead, "description": "The weights were already exported."}


@router.post("", status_code=201, responses={200: KNOWN})
def create_export(
    job_id: JobId, body: ExportCreate, principal: Writer, exports: ExportsDep, response: Response
) -> ExportRead:
    """Merge a job's adapter into its base model on a worker: safetensors that load without PEFT.

    The same weights are exported once: a repeated request returns the first export with status 200.
    """
    export, is_new = exports.create(principal, job_id, body)
    response.status_code = 201 if is_new else 200
    return export


@router.get("")
def list_exports(job_id: JobId, principal: Reader, exports: ExportsDep) -> Page[ExportRead]:
    """All exports of the job, newest first."""
    found = exports.list(principal.tenant, job_id)
    return page_of(found, len(found))


@router.get("/{export_id}")
def retrieve_export(job_id: JobId, export_id: ExportId, principal: Reader, exports: ExportsDep) -> ExportRead:
    """Status of an export; once it has succeeded, also size, SHA-256 and path of its archive."""
    return exports.read(principal.tenant, job_id, export_id)


@router.get("/{export_id}/logs", response_model=LogPage, responses=LOG_RESPONSES)
def list_export_logs(
    job_id: JobId, export_id: ExportId, principal: Reader, exports: ExportsDep, query: LogQueryDep
) -> LogPage | Response:
    """Lines that the export's engine has printed, in the form of a job's log."""
    exports.read(principal.tenant, job_id, export_id)
    return query.answer(exports.database, export_id)


@router.delete("/{export_id}")
def delete_export(
    job_id: JobId, export_id: ExportId, principal: Writer, exports: ExportsDep
) -> ExportDeleted:
    """Delete the archive, or cancel an export that has not ended."""
    return exports.delete(principal, job_id, export_id)


@router.get("/{export_id}/content", response_class=Response)
def download_export(
    request: Request,
    job_id: JobId,
    export_id: ExportId,
    principal: Reader,
    exports: ExportsDep,
    storage: StorageDep,
) -> Response:
    """The archive, a tar; with ETag, ranges and its SHA-256."""
    archive = exports.archive(principal.tenant, job_id, export_id)
    return file_response(
        request,
        storage,
        archive.storage_key,
        size=archive.num_bytes,
        sha256=archive.sha256,
        filename=archive.filename,
        media_type="application/x-tar",
    )
