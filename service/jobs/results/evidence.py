"""Reads a job's whole history and the digests of its archives, which `integrity.check_history` checks.

No content is read inside a session.
"""

import hashlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from sqlalchemy import select

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results.integrity import Event, Stored, Violation, check_history
from service.platform.clock import read_clock
from service.platform.db import Database
from service.platform.storage import ObjectMissing, Storage
from service.platform.tables.core import Artifact, Checkpoint, File, Job, JobEvent


def audit_job(database: Database, storage: Storage, job_id: str, *, max_failures: int = 3) -> list[Violation]:
    """The current violations of a job. Raises LookupError if there is no job with this id."""
    with database.reading() as session:
        if (job := session.get(Job, job_id)) is None:
            raise LookupError(f"there is no job {job_id}")
        now = read_clock(session)
    is_job = names.is_job(job_id)
    stored = list(stored_of(database, storage, job_id))
    if is_job and job.state == JobState.SUCCEEDED.value and job.fine_tuned_model is None:
        deleted = Stored("the deleted model", "adapter", job.step, job.fence, "", None, was_deleted=True)
        stored.append(deleted)
    history = history_of(database, job_id)
    return check_history(history, stored, max_failures=max_failures, is_job=is_job, now=now)


def job_ids(database: Database) -> list[str]:
    """All jobs, oldest first."""
    with database.reading() as session:
        return list(session.scalars(select(Job.id).order_by(Job.created_at, Job.id)))


def history_of(database: Database, job_id: str) -> list[Event]:
    """A job's events in order."""
    columns = (JobEvent.sequence, JobEvent.created_at, JobEvent.type, JobEvent.level, JobEvent.fence)
    query = select(*columns, JobEvent.data).where(JobEvent.job_id == job_id).order_by(JobEvent.sequence)
    with database.reading() as session:
        return [Event(*row) for row in session.execute(query)]


def stored_of(database: Database, storage: Storage, job_id: str) -> Iterator[Stored]:
    """Checkpoints (the state to resume from and the adapter) and results."""
    results = select(Artifact, File).join(File, File.id == Artifact.id).where(Artifact.job_id == job_id)
    with database.reading() as session:
        files = session.execute(results).all()
        checkpoints = session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id)).all()
    for row in checkpoints:
        shards = [(PurePosixPath(key).name, key, sha256) for key, sha256 in row.shards.items()]
        archives = [
            ("state", row.state_key, row.state_sha256),
            ("adapter", row.adapter_key, row.adapter_sha256),
        ]
        for part, key, sha256 in archives + shards:
            found = _sha256(storage, key) if key is not None else None
            if key is not None and (found is not None or _is_kept(database, row.id)):
                name = f"the checkpoint of step {row.step} ({part})"
                yield Stored(name, "checkpoint", row.step, row.fence, sha256, found)
    for artifact, file in files:
        found = _sha256(storage, file.storage_key)
        yield Stored(file.filename, artifact.kind, artifact.step, artifact.fence, file.sha256, found)


def _is_kept(database: Database, checkpoint_id: str) -> bool:
    """Whether the checkpoint still exists; a running job may have retired it meanwhile."""
    with database.reading() as session:
        return session.get(Checkpoint, checkpoint_id) is not None


def _sha256(storage: Storage, key: str) -> str | None:
    digest = hashlib.sha256()
    try:
        for piece in storage.stream(key):
            digest.update(piece)
    except ObjectMissing:
        return None
    return digest.hexdigest()
