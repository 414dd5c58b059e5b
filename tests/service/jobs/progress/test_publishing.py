"""A checkpoint that a new job starts from is kept, even if both happen at the same time."""

from concurrent.futures import ThreadPoolExecutor, wait

from sqlalchemy import select

from service.jobs.model import names
from service.jobs.progress import publishing
from service.platform.db import Database, lock_tenant
from service.platform.tables.core import Checkpoint, Job
from tests.worker.jobs import checkpoint, claimed, method, read_job


def publish(database: Database, job_id: str, step: int) -> None:
    with database.transaction() as session:
        assert publishing.publish_checkpoint(session, checkpoint(job_id, step))


def retire(database: Database, job_id: str) -> list[str] | None:
    with database.transaction() as session:
        return publishing.retire_checkpoints(session, job_id, 1, keep=1)


def test_a_checkpoint_is_kept_for_a_job_that_is_being_created(database: Database) -> None:
    job_id = claimed(database).id
    for step in (1, 2):
        publish(database, job_id, step)
    start = names.checkpoint_model(names.model_of(read_job(database, job_id)), 1)
    new = Job(id="ftjob-new", tenant="acme", state="queued", model=start, training_file="file-1", seed=1)
    new.method = method().model_dump(mode="json")
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            session.add(new)
            session.flush()
            lock_tenant(session, "acme")  # the request has found the checkpoint, and is about to commit
            retiring = pool.submit(retire, database, job_id)
            wait([retiring], timeout=0.5)
        assert retiring.result() == []
    with database.reading() as session:
        assert session.scalars(select(Checkpoint.step).order_by(Checkpoint.step)).all() == [1, 2]
