"""Queries about jobs. Each takes the tenant: the id of another tenant's row finds nothing.

Boundary: `queue.py` changes states, `history.py` writes history.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.jobs.store.transitions import IS_EXPORT, IS_JOB, IS_PROBE
from service.platform.clock import db_now, read_clock
from service.platform.errors import NotFound
from service.platform.tables.core import Artifact, Checkpoint, File, IdempotencyKey, Job, JobEvent, exists_now

DEDUPLICATION_SECONDS = 600
"""Time within which a client may repeat a request whose response was lost."""

# The statements of nearly every request are built once: building takes longer than running them.
_ROW = select(Job).where(Job.id == bindparam("job_id"), Job.tenant == bindparam("of_tenant"))
_JOB, _PROBE = _ROW.where(IS_JOB), _ROW.where(IS_PROBE)
_RESULTS = (
    select(Artifact, File)
    .join(File, File.id == Artifact.id)
    .where(Artifact.job_id.in_(bindparam("job_ids", expanding=True)))
    .where(File.tenant == bindparam("of_tenant"), File.deleted_at.is_(None))
)
_FILES = (
    select(File)
    .where(File.id.in_(bindparam("file_ids", expanding=True)), File.tenant == bindparam("of_tenant"))
    .where(exists_now())
)
_STORED_BYTES = select(func.sum(File.num_bytes)).where(
    File.tenant == bindparam("of_tenant"), File.deleted_at.is_(None)
)


def find_job(session: Session, tenant: str, job_id: str) -> Job | None:
    return session.scalar(_JOB, {"job_id": job_id, "of_tenant": tenant})


def require_job(session: Session, tenant: str, job_id: str) -> Job:
    """The tenant's job. Raises NotFound for any other id."""
    job = find_job(session, tenant, job_id)
    if job is None:
        message = f"There is no fine-tuning job {job_id}."
        raise NotFound(message, param="fine_tuning_job_id", code="job_not_found")
    return job


def find_probe(session: Session, tenant: str, probe_id: str) -> Job | None:
    return session.scalar(_PROBE, {"job_id": probe_id, "of_tenant": tenant})


def find_by_model(session: Session, tenant: str, fine_tuned_model: str) -> Job | None:
    """The job that produced a fine-tuned model."""
    return session.scalar(select(Job).where(Job.fine_tuned_model == fine_tuned_model, Job.tenant == tenant))


def fine_tuned(session: Session, tenant: str) -> list[Job]:
    """The tenant's jobs that produced a model, newest first."""
    query = select(Job).where(Job.tenant == tenant, Job.fine_tuned_model.is_not(None))
    return list(session.scalars(query.order_by(Job.created_at.desc(), Job.id.desc())))


def exports_of(session: Session, tenant: str, job_id: str) -> list[Job]:
    """The exports of a job's weights, newest first."""
    source = Job.export["job_id"].as_string() == job_id
    query = select(Job).where(Job.tenant == tenant, IS_EXPORT, source)
    return list(session.scalars(query.order_by(Job.created_at.desc(), Job.id.desc())))


def artifacts_of(session: Session, tenant: str, job_ids: Sequence[str]) -> list[tuple[Artifact, File]]:
    """The result files of these jobs that still exist."""
    pairs = session.execute(_RESULTS, {"job_ids": list(job_ids), "of_tenant": tenant})
    return [(artifact, file) for artifact, file in pairs]


def is_result(session: Session, file_id: str) -> bool:
    """Whether a file is the result of a job."""
    return session.get(Artifact, file_id) is not None


def files_by_id(session: Session, tenant: str, ids: Iterable[str]) -> dict[str, File]:
    """Existing files of the tenant."""
    return {file.id: file for file in session.scalars(_FILES, {"file_ids": list(ids), "of_tenant": tenant})}


def find_recent_request(session: Session, tenant: str, request_sha256: str) -> IdempotencyKey | None:
    """The newest POST with this body in the last ten minutes."""
    query = (
        select(IdempotencyKey)
        .where(IdempotencyKey.request_sha256 == request_sha256, IdempotencyKey.tenant == tenant)
        .where(IdempotencyKey.created_at > db_now() - DEDUPLICATION_SECONDS)
    )
    return session.scalar(query.order_by(IdempotencyKey.created_at.desc()).limit(1))


def events_before(
    session: Session, tenant: str, job_id: str, *, before: int | None, limit: int
) -> list[JobEvent]:
    """At most `limit` + 1 events older than the sequence `before`, newest first."""
    query = select(JobEvent).where(_belongs(JobEvent.job_id, tenant, job_id))
    if before is not None:
        query = query.where(JobEvent.sequence < before)
    return list(session.scalars(query.order_by(JobEvent.sequence.desc()).limit(limit + 1)))


def checkpoints_of(
    session: Session, tenant: str, job_id: str, *, before_step: int | None = None, limit: int | None = None
) -> list[Checkpoint]:
    """A job's checkpoints, newest first."""
    query = select(Checkpoint).where(_belongs(Checkpoint.job_id, tenant, job_id))
    if before_step is not None:
        query = query.where(Checkpoint.step < before_step)
    return list(session.scalars(query.order_by(Checkpoint.step.desc()).limit(limit)))


def best_checkpoints(session: Session, tenant: str, jobs: Sequence[Job]) -> dict[str, str]:
    """Job → id of the checkpoint of its best evaluated step, if there is one."""
    steps = {job.id: job.evaluation.get("best", {}).get("step") for job in jobs}
    wanted = [(job_id, step) for job_id, step in steps.items() if step]
    if not wanted:
        return {}
    query = select(Checkpoint.job_id, Checkpoint.id).join(Job, Job.id == Checkpoint.job_id)
    query = query.where(tuple_(Checkpoint.job_id, Checkpoint.step).in_(wanted), Job.tenant == tenant)
    return dict(session.execute(query).all())


def find_checkpoint(session: Session, tenant: str, checkpoint_id: str) -> Checkpoint | None:
    query = select(Checkpoint).join(Job, Job.id == Checkpoint.job_id)
    return session.scalar(query.where(Checkpoint.id == checkpoint_id, Job.tenant == tenant))


def forget_model(session: Session, tenant: str, job: Job) -> list[str]:
    """Clear a fine-tuned model's name, artifacts, exports and checkpoints; return their storage keys."""
    checkpoints = checkpoints_of(session, tenant, job.id)
    session.execute(update(Job).where(Job.id == job.id, Job.tenant == tenant).values(fine_tuned_model=None))
    exports = [row.id for row in exports_of(session, tenant, job.id)]
    keys = forget_results(session, tenant, [job.id, *exports])
    for checkpoint in checkpoints:
        session.delete(checkpoint)
    return keys + [key for point in checkpoints for key in point.storage_keys]


def forget_results(
    session: Session, tenant: str, job_ids: Sequence[str], *, with_metrics: bool = False
) -> list[str]:
    """Delete results of jobs and exports, metrics only `with_metrics`; return the storage keys."""
    pairs = artifacts_of(session, tenant, job_ids)
    results = [(artifact, file) for artifact, file in pairs if with_metrics or artifact.kind != "metrics"]
    for artifact, file in results:
        file.deleted_at = read_clock(session)
        session.delete(artifact)
    return [file.storage_key for _, file in results]


def add(session: Session, *rows: Any) -> None:
    """Stores new rows at once, so that later statements of the transaction see them."""
    session.add_all(rows)
    session.flush()


def _belongs(column: InstrumentedAttribute[str], tenant: str, job_id: str) -> ColumnElement[bool]:
    owned = select(Job.id).where(Job.id == job_id, Job.tenant == tenant).exists()
    return and_(column == job_id, owned)


def stored_bytes(session: Session, tenant: str) -> int:
    """The bytes of all stored files, expired ones included."""
    return int(session.scalar(_STORED_BYTES, {"of_tenant": tenant}) or 0)
