"""Creates a job: preflight, one transaction, then the wake-up; repeated requests create it only once."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy.orm import Session

from grpo_engine.process.fault_points import fault_point
from service.integrations import as_documents
from service.jobs.intake.checks.machine import required_by
from service.jobs.intake.generated import with_generated_files
from service.jobs.intake.preflight import Preflight
from service.jobs.intake.report import InvalidJob, Report
from service.jobs.model import names
from service.jobs.model.methods import datasets_of
from service.jobs.model.schemas import JobCreate, ProbeCreate
from service.jobs.model.states import JobState
from service.jobs.store import formats, history, repository
from service.jobs.store.lineage import base_model_name
from service.jobs.store.machines import as_text
from service.jobs.store.queue_health import num_unfinished
from service.jobs.store.wakeups import Wakeups
from service.platform import audit
from service.platform.db import lock_request, lock_tenant
from service.platform.errors import InvalidRequest, Unprocessable
from service.platform.ids import new_id
from service.platform.principal import Principal
from service.platform.tables.core import IdempotencyKey, Job
from service.platform.tables.sinks import sinks_of
from service.settings import Settings
from service.web.auth import require_valid_key
from service.web.limits import check_stored_bytes, check_unfinished_jobs

NUM_FIRST_EVENTS = 2
"""Number of events of a new job: created, and queued."""


@dataclass(frozen=True)
class Sender:
    """The sender of a POST, and the facts that identify its repetitions."""

    principal: Principal
    idempotency_key: str | None = None
    is_retry: bool = False
    """Whether the client repeats the request (`x-stainless-retry-count` above 0)."""


@dataclass(frozen=True)
class JobRequest:
    """One POST that creates a job."""

    sender: Sender
    body: JobCreate
    cloned_from: str | None = None
    """Id of the cloned job. It makes cloning a different request from creating a job with the same body."""

    @property
    def tenant(self) -> str:
        return self.sender.principal.tenant

    @property
    def may_be_repeated(self) -> bool:
        """Whether an earlier request may have had the same identity."""
        return self.sender.idempotency_key is not None or self.sender.is_retry

    @cached_property
    def sha256(self) -> str:
        """Digest of the canonical body; the order of keys and omitted defaults do not matter."""
        body = self.body.model_dump(mode="json")
        canonical = json.dumps([self.cloned_from, body] if self.cloned_from else body, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Created:
    """The job's id, and headers that mark the job of an earlier request."""

    job_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


def create_job(preflight: Preflight, wakeups: Wakeups, request: JobRequest) -> Created:
    """Queue a job, or return the one that the same request created before.

    Raises InvalidJob with every problem found, Unprocessable if the idempotency key was used with another
    body, and TooManyRequests at one of the tenant's limits; then nothing is queued.
    """
    settings = preflight.settings
    if request.may_be_repeated:
        with preflight.database.reading() as session:
            if earlier := _earlier(session, request):
                return earlier
    body = _with_seed(request.body)
    body, warnings = with_generated_files(preflight.files, request.sender.principal, body)
    report = preflight.check(request.tenant, body)
    report.warnings += warnings
    if report.problems.found:
        raise InvalidJob(report.problems)
    job = _job_of(request.tenant, body, report, settings)
    job.estimate = preflight.estimate(request.tenant, body, report).model_dump()
    if report.hub_model is not None:
        preflight.catalog.add_from_hub(report.hub_model.id, report.hub_model)
    fault_point("job.checked")
    with preflight.database.transaction() as session:
        lock_request(session, request.tenant, request.sender.idempotency_key or request.sha256)
        if request.may_be_repeated and (earlier := _earlier(session, request)):
            return earlier
        require_valid_key(session, request.sender.principal)
        _store(session, request, job)
        _check_under_lock(session, request.tenant, body, settings)
        fault_point("job.inserted")
    fault_point("job.committed")
    wakeups.send(settings.pool)
    fault_point("job.wakeup_sent")
    return Created(job.id)


def _earlier(session: Session, request: JobRequest) -> Created | None:
    """The response to an earlier equal request, if there was one."""
    tenant, key = request.tenant, request.sender.idempotency_key
    if key is not None:
        record = session.get(IdempotencyKey, (tenant, key))
        if record is not None and record.request_sha256 != request.sha256:
            raise Unprocessable(
                "This Idempotency-Key was used with another body. Use a new key for a new request.",
                code="idempotency_key_reuse",
                headers={"x-should-retry": "false"},
            )
        header = "Idempotency-Replayed"
    else:
        record = repository.find_recent_request(session, tenant, request.sha256)
        header = "x-deduplicated"
    find = repository.find_probe if isinstance(request.body, ProbeCreate) else repository.find_job
    job = find(session, tenant, record.job_id) if record else None
    return None if job is None else Created(job.id, {header: "true"})


def _check_under_lock(session: Session, tenant: str, body: JobCreate, settings: Settings) -> None:
    """Check what concurrent requests could change: the limits, and files and models that were deleted.

    Runs last, with the job already inserted, so that the tenant's lock is held for a short time.
    """
    lock_tenant(session, tenant)
    check_unfinished_jobs(num_unfinished(session, tenant, settings.max_queued_jobs + 1), settings)
    check_stored_bytes(repository.stored_bytes(session, tenant), 0, settings)
    uses = datasets_of(body)
    files = repository.files_by_id(session, tenant, [use.file_id for use in uses])
    for use in uses:
        if use.file_id not in files:
            message = f"{use.param}: there is no file {use.file_id}"
            raise InvalidRequest(message, param=use.param, code="file_not_found")
    if base_model_name(session, tenant, body.model) is None:
        message = f"model: {body.model!r} no longer exists"
        raise InvalidRequest(message, param="model", code="model_not_found")


def _store(session: Session, request: JobRequest, job: Job) -> None:
    key = request.sender.idempotency_key or f"auto:{job.id}"
    record = IdempotencyKey(tenant=job.tenant, key=key, request_sha256=request.sha256, job_id=job.id)
    origin = f", a clone of {request.cloned_from}" if request.cloned_from else ""
    created = history.HistoryEntry("message", f"Created fine-tuning job: {job.id}{origin}")
    noun = "job" if job.probe is None else "probe"
    audit.record(session, request.sender.principal, f"{noun}.create", job.id)
    repository.add(session, job, record, *sinks_of(job))
    queued = history.status(JobState.QUEUED, "The job is queued.")
    history.store(session, job.id, job.event_sequence, created, queued)


def _with_seed(body: JobCreate) -> JobCreate:
    """The body with a random seed if it has none. The checks need a seed, which decides the held-out rows."""
    return body if body.seed is not None else body.model_copy(update={"seed": secrets.randbelow(2**31)})


def _job_of(tenant: str, body: JobCreate, report: Report, settings: Settings) -> Job:
    job = Job(
        id=new_id("ftjob"),
        tenant=tenant,
        state=JobState.QUEUED.value,
        pool=settings.pool,
        model=body.model,
        training_file=body.training_file,
        validation_file=body.validation_file,
        validation_split=body.validation_split,
        suffix=body.suffix,
        seed=body.seed,
        resources=body.resources.model_dump(),
        method=report.method.model_dump(mode="json"),
        requested=body.given,
        integrations=as_documents(body.integrations or (), settings.integrations) or None,
        name=body.name,
        notes=body.notes,
        tags=list(dict.fromkeys(body.tags)),
        total_steps=report.total_steps,
        event_sequence=NUM_FIRST_EVENTS,
        warnings=report.warnings,
        required_capabilities=as_text(
            required_by(report.method, body.resources)
            | formats.required({"validation_split": body.validation_split})
        ),
        required_gpus=body.resources.least_gpus,
        required_gpu_memory_gb=body.resources.gpu_memory_gb,
    )
    if body.metadata is not None:
        job.labels = dict(body.metadata)  # not set to None, which would store JSON's null and not NULL
    if isinstance(body, ProbeCreate):
        job.id, job.probe, job.total_steps = new_id(names.PROBE), body.probe.model_dump(), 0
        job.integrations = None  # sinks receive metrics of jobs, not of probes
    return job
