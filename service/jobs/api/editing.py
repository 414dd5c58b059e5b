"""Changes that a user makes to a job other than its state: name, notes, tags, archiving, deletion.

Boundary: `service.py` reads jobs and changes their states.
"""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from grpo_engine.process.fault_points import fault_point
from service.jobs.model.editing import JobEdit
from service.jobs.model.states import TERMINAL, JobState
from service.jobs.store import repository
from service.jobs.store.lineage import users_of
from service.platform import audit
from service.platform.db import Database, lock_tenant
from service.platform.errors import Conflict
from service.platform.principal import Principal
from service.platform.storage import Storage
from service.platform.tables.core import Base, IdempotencyKey, Job


def edit_job(session: Session, principal: Principal, job_id: str, change: JobEdit) -> Job:
    """The job with the given fields changed, in any state. Raises NotFound."""
    lock_tenant(session, principal.tenant)  # the job may be about to be deleted
    job = repository.require_job(session, principal.tenant, job_id)
    for name in change.model_fields_set:
        setattr(job, name, getattr(change, name))
    job.tags = list(dict.fromkeys(job.tags))
    audit.record(session, principal, "job.update", job_id)
    session.flush()
    return job


def delete_job(database: Database, storage: Storage, principal: Principal, job_id: str) -> None:
    """Delete a finished job with its exports: every row that belongs to it, its results and its checkpoints.

    Its datasets stay, and so do deliveries of webhooks, which report its end. A repeated request with its
    idempotency key creates a new job. Objects that a crash leaves behind are orphans (`ops/orphans.py`).
    Raises NotFound, and Conflict if it has not ended or another job needs its weights.
    """
    with database.transaction() as session:
        lock_tenant(session, principal.tenant)  # a job that is being created may be about to start from it
        job = repository.require_job(session, principal.tenant, job_id)
        exports = repository.exports_of(session, principal.tenant, job_id)
        _check_unused(session, job, exports)
        ids = [job_id, *(export.id for export in exports)]
        keys = repository.forget_results(session, principal.tenant, ids, with_metrics=True)
        checkpoints = repository.checkpoints_of(session, principal.tenant, job_id)
        keys += [key for point in checkpoints for key in point.storage_keys]
        _delete_rows(session, principal.tenant, ids)
        audit.record(session, principal, "job.delete", job_id)
    fault_point("job.deleted")
    storage.discard(dict.fromkeys(keys))


def _check_unused(session: Session, job: Job, exports: list[Job]) -> None:
    """Raises Conflict if the job, an export or a job that starts from it prevents the deletion."""
    if JobState(job.state) not in TERMINAL:
        message = f"The job is {job.phase}. Cancel it and wait for its end before you delete it."
        raise Conflict(message, code="job_not_finished")
    for export in exports:
        if JobState(export.state) not in TERMINAL:
            message = f"Its export {export.id} is {export.state}. Delete the export, or wait for its end."
            raise Conflict(message, code="export_not_finished")
    if users := users_of(session, job):
        message = (
            f"The job is needed by {', '.join(users)}, which started from its weights. Delete them first."
        )
        raise Conflict(message, code="model_in_use")


def _delete_rows(session: Session, tenant: str, job_ids: list[str]) -> None:
    """The rows of every table that refers to jobs, the idempotency keys, and the jobs."""
    session.flush()
    session.expunge_all()
    for table in reversed(Base.metadata.sorted_tables):
        for key in table.foreign_keys:
            if key.references(Job.metadata.tables["jobs"]):
                session.execute(delete(table).where(key.parent.in_(job_ids)))
    keys = delete(IdempotencyKey).where(IdempotencyKey.tenant == tenant, IdempotencyKey.job_id.in_(job_ids))
    session.execute(keys)
    session.execute(delete(Job).where(Job.tenant == tenant, Job.id.in_(job_ids)))
