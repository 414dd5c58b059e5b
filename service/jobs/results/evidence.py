"""Reads a job's whole history and the digests of its archives, which `integrity.check_history` checks.

No content is read inside a session.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results.integrity import Event, Stored, Violation, check_history
from service.platform.clock import read_clock
from service.platform.db import Database
from service.platform.storage import ObjectMissing, Storage
from service.platform.tables.core import Artifact, Base, Checkpoint, File, Job, JobEvent


def audit_job(database: Database, storage: Storage, job_id: str, *, max_failures: int = 3) -> list[Violation]:
    """The violations of a job at the time of the call. The job may continue while its archives are read.

    Raises LookupError if there is no job with this id.
    """
    with database.snapshot() as session:
        if (job := session.get(Job, job_id)) is None:
            raise LookupError(f"there is no job {job_id}")
        now = read_clock(session)
        history = _history(session, job_id)
        checkpoints = session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id)).all()
        results = _results(session, job_id)
    is_job = names.is_job(job_id)
    stored = list(_stored_checkpoints(database, storage, checkpoints))
    stored += _stored_results(database, storage, results)
    if is_job and job.state == JobState.SUCCEEDED.value and job.fine_tuned_model is None:
        deleted = Stored("the deleted model", "adapter", job.step, job.fence, "", None, was_deleted=True)
        stored.append(deleted)
    return check_history(history, stored, max_failures=max_failures, is_job=is_job, now=now)


def job_ids(database: Database) -> list[str]:
    """All jobs, oldest first."""
    with database.reading() as session:
        return list(session.scalars(select(Job.id).order_by(Job.created_at, Job.id)))


def _history(session: Session, job_id: str) -> list[Event]:
    """A job's events in order."""
    columns = (JobEvent.sequence, JobEvent.created_at, JobEvent.type, JobEvent.level, JobEvent.fence)
    query = select(*columns, JobEvent.data).where(JobEvent.job_id == job_id).order_by(JobEvent.sequence)
    return [Event(*row) for row in session.execute(query)]


def _results(session: Session, job_id: str) -> list[tuple[Artifact, File]]:
    query = select(Artifact, File).join(File, File.id == Artifact.id).where(Artifact.job_id == job_id)
    return [(artifact, file) for artifact, file in session.execute(query)]


def _stored_checkpoints(
    database: Database, storage: Storage, checkpoints: Sequence[Checkpoint]
) -> Iterator[Stored]:
    """The archives of each checkpoint: the state to resume from with its shards, and the adapter."""
    for row in checkpoints:
        archives: dict[str, tuple[str | None, str]] = {
            "state": (row.state_key, row.state_sha256),
            "adapter": (row.adapter_key, row.adapter_sha256),
        }
        archives |= {PurePosixPath(key).name: (key, sha256) for key, sha256 in row.shards.items()}
        for part, (key, sha256) in archives.items():
            if key is None:
                continue
            found = _sha256(storage, key)
            if found is not None or _is_kept(database, Checkpoint, row.id):
                name = f"the checkpoint of step {row.step} ({part})"
                yield Stored(name, "checkpoint", row.step, row.fence, sha256, found)


def _stored_results(
    database: Database, storage: Storage, results: Sequence[tuple[Artifact, File]]
) -> Iterator[Stored]:
    for artifact, file in results:
        found = _sha256(storage, file.storage_key)
        was_deleted = found is None and not _is_kept(database, Artifact, artifact.id)
        about = (artifact.kind, artifact.step, artifact.fence, file.sha256, found)
        yield Stored(file.filename, *about, was_deleted=was_deleted)


def _is_kept(database: Database, table: type[Base], row_id: str) -> bool:
    """Whether the row still exists. Meanwhile, a running job may have retired a checkpoint, and a user may
    have deleted a result."""
    with database.reading() as session:
        return session.get(table, row_id) is not None


def _sha256(storage: Storage, key: str) -> str | None:
    digest = hashlib.sha256()
    try:
        for piece in storage.stream(key):
            digest.update(piece)
    except ObjectMissing:
        return None
    return digest.hexdigest()
