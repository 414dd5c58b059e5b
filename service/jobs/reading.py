"""Jobs as their answers, with the four queries that all jobs of a page share."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.errors import NotFound
from service.jobs import repository
from service.jobs.schemas import JobRead
from service.jobs.views import job_read
from service.models import Artifact, File, Job


def read_jobs(session: Session, tenant: str, jobs: Sequence[Job]) -> list[JobRead]:
    """The answers, in the order of `jobs`."""
    if not jobs:
        return []
    positions = repository.queue_positions(session, tenant, jobs)
    results: dict[str, list[tuple[Artifact, File]]] = {job.id: [] for job in jobs}
    for artifact, file in repository.artifacts_of(session, tenant, list(results)):
        results[artifact.job_id].append((artifact, file))
    best = repository.best_checkpoints(session, tenant, jobs)
    now = repository.now(session)
    return [
        job_read(
            job,
            position=positions.get(job.id),
            results=results[job.id],
            now=now,
            best_checkpoint=best.get(job.id),
        )
        for job in jobs
    ]


def require_job(session: Session, tenant: str, job_id: str) -> Job:
    """The tenant's job. Raises NotFound for any other id, whoever owns it."""
    job = repository.find_job(session, tenant, job_id)
    if job is None:
        message = f"There is no fine-tuning job {job_id}."
        raise NotFound(message, param="fine_tuning_job_id", code="job_not_found")
    return job
