"""Jobs as their answers, with the few queries that all jobs of a page share."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.jobs.api.responses import job_read
from service.jobs.model.schemas import JobRead
from service.jobs.model.states import HELD, JobState
from service.jobs.store import queue_health, repository
from service.platform.tables.core import Artifact, File, Job


def read_jobs(session: Session, tenant: str, jobs: Sequence[Job], max_running: int | None) -> list[JobRead]:
    """The answers, in the order of `jobs`. `max_running`: the deployment's limit for a tenant."""
    if not jobs:
        return []
    positions = queue_health.queue_places(session, jobs)
    is_full = bool(positions) and queue_health.is_at_running_limit(session, tenant, max_running)
    results: dict[str, list[tuple[Artifact, File]]] = {job.id: [] for job in jobs}
    begun = [job.id for job in jobs if job.attempt or job.state != JobState.QUEUED.value]
    for artifact, file in repository.artifacts_of(session, tenant, begun) if begun else ():
        results[artifact.job_id].append((artifact, file))
    best = repository.best_checkpoints(session, tenant, jobs)
    now = repository.now(session) if any(map(_waits_or_works, jobs)) else 0.0
    return [
        job_read(
            job,
            position=positions.get(job.id),
            waits_for_own=max_running if is_full else None,
            results=results[job.id],
            now=now,
            best_checkpoint=best.get(job.id),
        )
        for job in jobs
    ]


def _waits_or_works(job: Job) -> bool:
    """Whether its answer says something about the time from now on."""
    return JobState(job.state) in HELD or job.not_before > 0
