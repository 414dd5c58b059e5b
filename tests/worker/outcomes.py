"""Results, metrics and messages of jobs, as tests need them."""

import hashlib
import io
import tarfile
import threading

from sqlalchemy import select, update

from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, File, Job, JobEvent, Metric
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker


def messages(database: Database, job_id: str, level: str | None = None) -> list[str]:
    entries = select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.sequence)
    with database.reading() as session:
        return [entry.message for entry in session.scalars(entries) if level in (None, entry.level)]


def metric_steps(database: Database, job_id: str) -> list[int]:
    """Training steps with metrics; step 0 is the evaluation before training."""
    steps = select(Metric.step).where(Metric.job_id == job_id, Metric.step > 0).order_by(Metric.step)
    with database.reading() as session:
        return list(session.scalars(steps))


def weights(database: Database, storage: Storage, job_id: str) -> bytes:
    """The trained adapter's tensors."""
    query = (
        select(File)
        .join(Artifact, Artifact.id == File.id)
        .where(Artifact.job_id == job_id, Artifact.kind == "adapter")
    )
    with database.reading() as session:
        file = session.scalars(query).one()
    content = storage.get_bytes(file.storage_key)
    assert hashlib.sha256(content).hexdigest() == file.sha256
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile("adapter_model.safetensors")
        assert member is not None
        return member.read()


def expected_weights(seed: int = 7, num_steps: int = 10) -> bytes:
    digest = hashlib.sha256(str(seed).encode()).hexdigest()
    for step in range(1, num_steps + 1):
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
    return digest.encode()


def make_due(database: Database) -> None:
    """End the pause before the next attempt of all jobs."""
    with database.transaction() as session:
        session.execute(update(Job).values(not_before=0))


def damage(storage: Storage, key: str) -> None:
    """Change a byte of a stored object."""
    content = bytearray(storage.get_bytes(key))
    content[len(content) // 2] ^= 1
    storage.put(key, bytes(content))


def run_until_idle(worker: Worker, database: Database) -> None:
    """Run all queued jobs without pauses between retries."""
    while run_job(worker):
        make_due(database)


def in_background(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=run_job, args=(worker,))
    thread.start()
    return thread
