"""`/v1/fine_tuning/jobs`: HTTP in, HTTP out; `service.py` and `intake/creation.py` have the logic."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from service.jobs.api import editing, endpoints_logs, endpoints_manifest, endpoints_series
from service.jobs.api.dependencies import CheckpointId, JobId, PreflightDep, SenderDep, WakeupsDep
from service.jobs.api.endpoints_exports import ExportsDep
from service.jobs.api.label_filter import PARAMETER, labels_of
from service.jobs.api.service import Jobs
from service.jobs.api.shared_view import shown_to
from service.jobs.diagnosis.facts import diagnosis_of
from service.jobs.diagnosis.findings import Diagnosis
from service.jobs.intake import cloning, creation
from service.jobs.intake.generated import with_generated_files
from service.jobs.model.editing import JobDeleted, JobEdit
from service.jobs.model.schemas import CheckpointRead, EventRead, JobCreate, JobRead
from service.jobs.model.validation import ProblemRead, RowCounts, ValidationRead
from service.jobs.results.weights import Which as WhichWeights
from service.jobs.store.lineage import StoredWeights
from service.jobs.store.listing import JobFilter, Sort, Status
from service.platform.tables.core import MODEL_CHARACTERS
from service.web.auth import Reader, Writer
from service.web.dependencies import DatabaseDep, SettingsDep, StorageDep
from service.web.downloads import file_response
from service.web.pagination import After, Limit, Page, page_of

router = APIRouter(prefix="/v1/fine_tuning", tags=["fine-tuning"])
router.include_router(endpoints_series.router)
router.include_router(endpoints_logs.router)
router.include_router(endpoints_manifest.router)


async def _jobs(database: DatabaseDep, wakeups: WakeupsDep, settings: SettingsDep) -> Jobs:
    return Jobs(database, wakeups, settings)


JobsDep = Annotated[Jobs, Depends(_jobs)]
Patch = Annotated[dict[str, Any], Body(description="A merge patch over the job's request; {} repeats it.")]
Which = Annotated[WhichWeights, Query(description="The final weights, or the best evaluated ones.")]
CheckpointName = Annotated[str | None, Query(description="Id of a checkpoint, `final` or `best`.")]
ModelName = Annotated[
    str | None, Query(max_length=MODEL_CHARACTERS, description="Model that the job starts from.")
]
TagName = Annotated[str | None, Query(max_length=64, description="Tag of the job.")]
Text = Annotated[str | None, Query(max_length=256, description="Part of the name, suffix, id or model.")]
StatusName = Annotated[Status | None, Query(description="Status of the job.")]
Order = Annotated[Sort, Query(description="Value to sort by; `-` before it: the largest first.")]
Archived = Annotated[
    bool | None,
    Query(description="Only archived jobs, or only jobs that are not archived (default: both)."),
]
Format = Annotated[
    Literal["peft", "merged"], Query(description="The adapter in PEFT layout, or the merged model.")
]


@router.post("/jobs")
def create_job(
    body: JobCreate,
    sender: SenderDep,
    preflight: PreflightDep,
    wakeups: WakeupsDep,
    jobs: JobsDep,
    response: Response,
) -> JobRead:
    """Check everything, queue the job and return it.

    A repeated request with the same `Idempotency-Key`, or a retry of OpenAI's client, gets the first job.
    """
    created = creation.create_job(preflight, wakeups, creation.JobRequest(sender, body))
    response.headers.update(created.headers)
    return jobs.read(sender.principal.tenant, created.job_id)


@router.post("/jobs/{job_id}/clone")
def clone_job(
    job_id: JobId,
    sender: SenderDep,
    preflight: PreflightDep,
    wakeups: WakeupsDep,
    jobs: JobsDep,
    response: Response,
    patch: Patch = {},  # noqa: B006 - never modified
) -> JobRead:
    """Create a job with the same request, the seed included, changed by the patch.

    Null removes a field: `{"seed": null}` draws a new seed. All checks and limits of creation apply.
    """
    created = cloning.clone_job(preflight, wakeups, sender, job_id, patch)
    response.headers.update(created.headers)
    return jobs.read(sender.principal.tenant, created.job_id)


@router.get("/jobs/{job_id}/diagnosis")
def diagnose_job(job_id: JobId, principal: Reader, database: DatabaseDep) -> Diagnosis:
    """Causes of a failure or of poor learning, with evidence and the patch for a clone."""
    return shown_to(principal, database, diagnosis_of(database, principal.tenant, job_id))


@router.post("/jobs/validate")
def validate_job(body: JobCreate, principal: Reader, preflight: PreflightDep) -> ValidationRead:
    """Check a job and estimate its cost without creating it; returns the first hundred problems.

    A `dataset` is generated and stored, as it is when the job is created.
    """
    body, warnings = with_generated_files(preflight.files, principal, body)
    report = preflight.check(principal.tenant, body)
    return ValidationRead(
        valid=not report.problems.found,
        num_problems=report.problems.total,
        problems=[ProblemRead(**each) for each in report.problems.listed()],
        warnings=[*report.warnings, *warnings],
        rows=RowCounts(training=report.num_training_rows, validation=report.num_validation_rows),
        total_steps=report.total_steps,
        method=report.method.model_dump(mode="json"),
        estimate=preflight.estimate(principal.tenant, body, report, fresh=True),
    )


@router.get("/jobs", openapi_extra={"parameters": [PARAMETER]})
def list_jobs(
    request: Request,
    principal: Reader,
    jobs: JobsDep,
    after: After = None,
    limit: Limit = 20,
    status: StatusName = None,
    model: ModelName = None,
    tag: TagName = None,
    q: Text = None,
    archived: Archived = None,
    sort: Order = "-created",
) -> Page[JobRead]:
    """Jobs, newest first.

    `sort` may be `created`, `name`, `status`, `model` or `held_out` (the change of the held-out reward), with
    a `-` for the largest first; jobs that are equal in it come newest first.
    """
    wanted = JobFilter(status, model, tag, q, archived, labels_of(request))
    return page_of(jobs.page(principal.tenant, wanted, sort=sort, after=after, limit=limit), limit)


@router.get("/jobs/{job_id}")
def retrieve_job(job_id: JobId, principal: Reader, jobs: JobsDep, database: DatabaseDep) -> JobRead:
    """The job's status, phase, progress, evaluation, artifacts, and why it failed.

    A shared link sees no headers of graders, and only the host names of graders' and tools' URLs.
    """
    return shown_to(principal, database, jobs.read(principal.tenant, job_id))


@router.patch("/jobs/{job_id}")
def edit_job(job_id: JobId, body: JobEdit, principal: Writer, jobs: JobsDep) -> JobRead:
    """Change the job's name, notes or tags, or archive it, in any state. Absent fields do not change."""
    return jobs.edit(principal, job_id, body)


@router.delete("/jobs/{job_id}")
def delete_job(job_id: JobId, principal: Writer, database: DatabaseDep, storage: StorageDep) -> JobDeleted:
    """Delete a finished job with its metrics, rollouts, events, checkpoints, exports and results.

    Its datasets stay. Returns 409 if the job has not ended or another job started from its weights.
    """
    editing.delete_job(database, storage, principal, job_id)
    return JobDeleted(id=job_id)


@router.post("/jobs/{job_id}/cancel")
def cancel_job(job_id: JobId, principal: Writer, jobs: JobsDep) -> JobRead:
    """End the job; its last checkpoint and adapter remain downloadable."""
    return jobs.request(principal, job_id, "cancel")


@router.post("/jobs/{job_id}/pause")
def pause_job(job_id: JobId, principal: Writer, jobs: JobsDep) -> JobRead:
    """Pause the job after a checkpoint."""
    return jobs.request(principal, job_id, "pause")


@router.post("/jobs/{job_id}/resume")
def resume_job(job_id: JobId, principal: Writer, jobs: JobsDep) -> JobRead:
    """Queue a paused job again; it continues from its last checkpoint."""
    return jobs.request(principal, job_id, "resume")


@router.get("/jobs/{job_id}/events")
def list_events(
    job_id: JobId,
    principal: Reader,
    jobs: JobsDep,
    database: DatabaseDep,
    after: After = None,
    limit: Limit = 20,
) -> Page[EventRead]:
    """Newest first."""
    found = jobs.events(principal.tenant, job_id, after=after, limit=limit)
    return page_of(shown_to(principal, database, found), limit)


@router.get("/jobs/{job_id}/checkpoints")
def list_checkpoints(
    job_id: JobId, principal: Reader, jobs: JobsDep, after: After = None, limit: Limit = 10
) -> Page[CheckpointRead]:
    """Newest first."""
    return page_of(jobs.checkpoints(principal.tenant, job_id, after=after, limit=limit), limit)


@router.get(
    "/jobs/{job_id}/adapter",
    response_class=Response,
    responses={303: {"description": "`format=merged`: `Location` is the archive of the export."}},
)
def download_adapter(
    request: Request,
    job_id: JobId,
    principal: Reader,
    jobs: JobsDep,
    storage: StorageDep,
    exports: ExportsDep,
    which: Which = "final",
    checkpoint: CheckpointName = None,
    format: Format = "peft",
) -> Response:
    """The final weights as tar.gz in PEFT layout (the whole model for `lora: full`).

    `checkpoint=best` selects the best weights by held-out reward; a checkpoint's id selects that checkpoint.

    `format=merged` redirects (303) to the content of a finished export of these weights; before that it is a
    404 with the code `export_not_ready`. Create the export with `POST …/exports`.
    """
    weights = jobs.weights(principal.tenant, job_id, which=which, checkpoint=checkpoint)
    if format == "merged" and weights.kind != "model":
        return RedirectResponse(exports.of_weights(principal.tenant, weights), status_code=303)
    return _send(request, storage, weights)


@router.get("/jobs/{job_id}/checkpoints/{checkpoint_id}/content", response_class=Response)
def download_checkpoint(
    request: Request,
    job_id: JobId,
    checkpoint_id: CheckpointId,
    principal: Reader,
    jobs: JobsDep,
    storage: StorageDep,
) -> Response:
    """The adapter at a checkpoint, as tar.gz."""
    weights = jobs.checkpoint_weights(principal.tenant, checkpoint_id, job_id)
    return _send(request, storage, weights)


@router.get("/checkpoints/{checkpoint_id}/content", response_class=Response)
def download_any_checkpoint(
    request: Request, checkpoint_id: CheckpointId, principal: Reader, jobs: JobsDep, storage: StorageDep
) -> Response:
    """The adapter at a checkpoint, without the job's id."""
    return _send(request, storage, jobs.checkpoint_weights(principal.tenant, checkpoint_id))


def _send(request: Request, storage: StorageDep, weights: StoredWeights) -> Response:
    response = file_response(
        request,
        storage,
        weights.storage_key,
        size=weights.num_bytes,
        sha256=weights.sha256,
        filename=weights.filename,
        media_type="application/gzip",
    )
    response.headers["x-step"] = str(weights.step)
    return response
