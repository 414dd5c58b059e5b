"""Upgrades: a worker on a newer schema continues; on an older schema it waits."""

from collections.abc import Callable

from sqlalchemy import text

from service.platform.db import Database
from tests.worker.jobs import read_job
from worker.attempt.attempt import Worker
from worker.launchers.warm_pool import WarmPool
from worker.loop import try_job

Submit = Callable[..., str]


def alter(database: Database, *statements: str) -> None:
    with database.transaction() as session:
        for statement in statements:
            session.execute(text(statement))


def test_an_old_worker_finishes_jobs_on_a_newer_schema(
    database: Database, worker: Worker, submit: Submit
) -> None:
    alter(
        database,
        "ALTER TABLE jobs ADD COLUMN future_column VARCHAR(8) NOT NULL DEFAULT 'x'",
        "UPDATE alembic_version SET version_num = 'newer'",
    )
    job_id = submit()
    assert try_job(worker, WarmPool(worker.settings, keep_warm=False))
    assert read_job(database, job_id).state == "succeeded"


def test_a_new_worker_waits_for_the_migration(database: Database, worker: Worker, submit: Submit) -> None:
    job_id = submit()
    engines = WarmPool(worker.settings, keep_warm=False)
    alter(database, "ALTER TABLE jobs RENAME COLUMN phase TO not_yet")
    assert not try_job(worker, engines)
    alter(database, "ALTER TABLE jobs RENAME COLUMN not_yet TO phase")
    assert try_job(worker, engines)
    assert read_job(database, job_id).state == "succeeded"
