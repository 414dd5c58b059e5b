"""Exports: rows of the jobs' queue whose engine merges a job's weights into one model.

An export is claimed, leased, retried and swept like a job. The worker stores its result as an artifact
(`worker/attempt/publish.py`).
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from grpo_engine.contract.events import MergeDifference
from service.jobs.model import names
from service.jobs.model.methods import parsed_method, quantization_of
from service.jobs.model.schemas import ErrorRead, FailureRead
from service.jobs.model.states import PUBLIC, JobState
from service.jobs.results.weights import WeightsMissing, Which, model_parts, requested_weights
from service.jobs.store import history, queue, repository
from service.jobs.store.lineage import StoredWeights, lineage_of
from service.jobs.store.queue_health import num_unfinished
from service.jobs.store.repository import require_job
from service.jobs.store.transitions import IS_EXPORT
from service.jobs.store.wakeups import Wakeups
from service.platform import audit
from service.platform.catalog import Catalog
from service.platform.db import Database, lock_tenant
from service.platform.errors import InvalidRequest, NotFound, Unprocessable
from service.platform.ids import new_id
from service.platform.principal import Principal
from service.platform.storage import Storage
from service.platform.tables.core import File, Job
from service.settings import Settings
from service.web.auth import require_valid_key
from service.web.limits import check_stored_bytes, check_unfinished_jobs
from service.web.validation import RequestBody

NOT_READY = "export_not_ready"
GONE = {JobState.CANCELLING, JobState.CANCELLED}


class ExportCreate(RequestBody):
    """Body of `POST …/jobs/{id}/exports`."""

    format: Literal["merged"]
    """`merged`: base model and adapter as one model, which loads without PEFT."""
    which: Which = "final"
    """The final weights, or the best evaluated ones."""
    checkpoint: str | None = Field(None, max_length=64)
    """Id of a checkpoint, instead of `which`."""


class ExportRead(BaseModel):
    """An export. Poll it until `status` is succeeded or failed."""

    object: Literal["fine_tuning.export"] = "fine_tuning.export"
    id: str
    job_id: str
    format: str
    step: int
    """Step of the exported weights."""
    base: str
    """The model that the adapter is merged into, in the precision of its files."""
    quantization: str | None
    """How that base was quantised while the adapter was trained; null: not quantised."""
    difference: MergeDifference | None
    """The effect of merging into the unquantised base, measured on held-out completions; null: the base was
    not quantised, the export has not succeeded, or the job has no held-out rows."""
    status: str
    """queued, running, succeeded or failed."""
    phase: str
    created_at: int
    started_at: int | None
    finished_at: int | None
    bytes: int | None
    sha256: str | None
    """SHA-256 of the archive, a tar; it and `bytes` are null until the export has succeeded."""
    file_id: str | None
    """File id of the archive, for `GET /v1/files/{id}/content`."""
    content: str | None
    """Path of the archive's download."""
    error: ErrorRead | None
    failure: FailureRead | None


class ExportDeleted(BaseModel):
    object: Literal["fine_tuning.export"] = "fine_tuning.export"
    id: str
    deleted: bool = True


class StoredExport(NamedTuple):
    """An export's row, and its archive if it has succeeded."""

    row: Job
    archive: File | None


@dataclass(frozen=True)
class Exports:
    """The exports of one deployment."""

    database: Database
    storage: Storage
    catalog: Catalog
    wakeups: Wakeups
    settings: Settings

    def create(self, principal: Principal, job_id: str, body: ExportCreate) -> tuple[ExportRead, bool]:
        """The export of these weights, and whether it is new.

        Raises NotFound for a job without weights, InvalidRequest for a training-free job, Unprocessable if
        the base model is missing, TooManyRequests at a limit of the tenant.
        """
        tenant = principal.tenant
        with self.database.reading() as session:
            job = require_job(session, tenant, job_id)
            weights = requested_weights(session, tenant, job, body.which, body.checkpoint)
            lineage = lineage_of(session, tenant, weights.name)
        if weights.kind == "experiences":
            message = f"{job_id} is training-free: it has lessons, and no weights to export."
            raise InvalidRequest(message, param="format", code="model_without_weights")
        try:
            base = model_parts(lineage, self.catalog).name
        except WeightsMissing as error:
            message = f"{job_id} cannot be exported: {error}."
            raise Unprocessable(message, param="format", code="base_model_missing") from error
        with self.database.transaction() as session:
            lock_tenant(session, tenant)
            require_valid_key(session, principal)
            # the weights may have been deleted meanwhile
            job = require_job(session, tenant, job_id)
            weights = requested_weights(session, tenant, job, body.which, body.checkpoint)
            if (earlier := _of_weights(session, tenant, weights)) is not None:
                return _read(earlier), False
            row = _insert(session, weights, base, body.format, self.settings.pool)
            unfinished = num_unfinished(session, tenant, self.settings.max_queued_jobs + 1)
            check_unfinished_jobs(unfinished, self.settings)
            check_stored_bytes(repository.stored_bytes(session, tenant), 0, self.settings)
            audit.record(session, principal, "job.export.create", row.id)
            answer = _read(StoredExport(row, None))
        self.wakeups.send(self.settings.pool)
        return answer, True

    def list(self, tenant: str, job_id: str) -> list[ExportRead]:
        """All exports of the job, newest first."""
        with self.database.reading() as session:
            require_job(session, tenant, job_id)
            return [_read(each) for each in _of_job(session, tenant, job_id)]

    def read(self, tenant: str, job_id: str, export_id: str) -> ExportRead:
        with self.database.reading() as session:
            return _read(_require(session, tenant, job_id, export_id))

    def archive(self, tenant: str, job_id: str, export_id: str) -> File:
        """The file to download. Raises NotFound until the export has succeeded."""
        with self.database.reading() as session:
            return _archive(_require(session, tenant, job_id, export_id))

    def of_weights(self, tenant: str, weights: StoredWeights) -> str:
        """Path of these weights' archive, relative to `…/adapter`: a proxy may add a prefix to all paths.

        Raises NotFound if they were not exported.
        """
        with self.database.reading() as session:
            found = _of_weights(session, tenant, weights)
        if found is None:
            place = f"POST /v1/fine_tuning/jobs/{weights.job.id}/exports"
            message = f'These weights were not exported. Send {place} with {{"format": "merged"}}.'
            raise NotFound(message, param="format", code=NOT_READY)
        _archive(found)
        return f"exports/{found.row.id}/content"

    def delete(self, principal: Principal, job_id: str, export_id: str) -> ExportDeleted:
        """Delete the archive, or cancel an export that has not ended."""
        with self.database.transaction() as session:
            lock_tenant(session, principal.tenant)
            found = _require(session, principal.tenant, job_id, export_id)
            cancel_export(session, found.row)
            keys = repository.forget_results(session, principal.tenant, [export_id])
            audit.record(session, principal, "job.export.delete", export_id)
        self.storage.discard(keys)
        return ExportDeleted(id=export_id)


def cancel_export(session: Session, row: Job) -> None:
    """Cancel an export unless it has ended, perhaps since its row was read."""
    with suppress(queue.WrongState):
        queue.request(session, row.tenant, row.id, "cancel", of=IS_EXPORT)


def _of_job(session: Session, tenant: str, job_id: str) -> list[StoredExport]:
    """Exports that are neither cancelled nor deleted, newest first."""
    rows = repository.exports_of(session, tenant, job_id)
    pairs = repository.artifacts_of(session, tenant, [row.id for row in rows])
    archives = {artifact.job_id: file for artifact, file in pairs}
    found = [StoredExport(row, archives.get(row.id)) for row in rows if JobState(row.state) not in GONE]
    return [each for each in found if each.archive or each.row.state != JobState.SUCCEEDED.value]


def _of_weights(session: Session, tenant: str, weights: StoredWeights) -> StoredExport | None:
    """The export of the same weights that has not failed."""
    for each in _of_job(session, tenant, weights.job.id):
        is_usable = each.row.state != JobState.FAILED.value
        if is_usable and each.row.export and each.row.export["sha256"] == weights.sha256:
            return each
    return None


def _require(session: Session, tenant: str, job_id: str, export_id: str) -> StoredExport:
    require_job(session, tenant, job_id)
    for each in _of_job(session, tenant, job_id):
        if each.row.id == export_id:
            return each
    raise NotFound(f"There is no export {export_id}.", param="export_id", code="export_not_found")


def _insert(session: Session, weights: StoredWeights, base: str, format_: str, pool: str) -> Job:
    job, about = weights.job, {"format": format_, "step": weights.step, "base": base}
    row = Job(
        id=new_id(names.EXPORT),
        tenant=job.tenant,
        state=JobState.QUEUED.value,
        pool=pool,
        model=weights.name,
        training_file="",
        seed=job.seed,
        method=job.method,
        export={**about, "job_id": job.id, "sha256": weights.sha256},
        event_sequence=1,
    )
    repository.add(session, row)
    queued = history.status(JobState.QUEUED, "The export is queued.")
    history.store(session, row.id, row.event_sequence, queued)
    session.refresh(row)
    return row


def _read(found: StoredExport) -> ExportRead:
    row, archive = found
    about = row.export or {}
    failure = FailureRead.model_validate(row.failure) if row.failure else None
    return ExportRead(
        id=row.id,
        job_id=about["job_id"],
        format=about["format"],
        step=about["step"],
        base=about["base"],
        quantization=quantization_of(parsed_method(row.method)),
        difference=about.get("difference"),
        status=PUBLIC[JobState(row.state)].value,
        phase=row.phase,
        created_at=int(row.created_at),
        started_at=None if row.started_at is None else int(row.started_at),
        finished_at=None if row.finished_at is None else int(row.finished_at),
        bytes=archive.num_bytes if archive else None,
        sha256=archive.sha256 if archive else None,
        file_id=archive.id if archive else None,
        content=f"{_path(row)}/content" if archive else None,
        error=ErrorRead(code=failure.code, message=failure.message) if failure else None,
        failure=failure,
    )


def _path(row: Job) -> str:
    return f"/v1/fine_tuning/jobs/{(row.export or {})['job_id']}/exports/{row.id}"


def _archive(found: StoredExport) -> File:
    row, archive = found
    if archive is not None:
        return archive
    path, state = _path(row), PUBLIC[JobState(row.state)].value
    message = f"The export {row.id} is {state}. Poll GET {path}."
    if row.failure:
        reason = row.failure["message"].removesuffix(".")
        exports = path.rpartition("/")[0]
        message = f"The export {row.id} has failed: {reason}. Create a new one with POST {exports}."
    raise NotFound(message, param="format", code=NOT_READY)
