"""Upgrades: a worker on a newer schema continues; on an older schema it waits."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from service.jobs.store import formats
from service.jobs.store.claiming import ClaimedJob
from service.platform.db import Database
from tests.worker.jobs import read_job
from worker.attempt.worker import Worker
from worker.launchers.warm_pool import WarmPool
from worker.loop import try_job

Submit = Callable[..., str]
FIRST_FORMAT = {
    *("id", "tenant", "pool", "fence", "attempt", "created_at", "model", "training_file", "validation_file"),
    *("suffix", "seed", "method", "probe", "export", "required_capabilities", "required_gpus", "resources"),
    *("checkpoint_step", "engine_sequence", "event_sequence"),
}
"""Columns that every worker reads."""


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


def test_a_new_worker_waits_for_the_migration(
    database: Database, worker: Worker, submit: Submit, capfd: pytest.CaptureFixture[str]
) -> None:
    job_id = submit()
    engines = WarmPool(worker.settings, keep_warm=False)
    alter(database, "ALTER TABLE jobs RENAME COLUMN phase TO not_yet")
    assert not try_job(worker, engines)
    if database.engine.name == "postgresql":
        assert "ProgrammingError: column " in "".join(capfd.readouterr())
    alter(database, "ALTER TABLE jobs RENAME COLUMN not_yet TO phase")
    assert try_job(worker, engines)
    assert read_job(database, job_id).state == "succeeded"


def test_an_old_worker_leaves_a_job_with_newer_columns_in_the_queue(
    database: Database, worker: Worker, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = submit(required_capabilities="format:2")
    plain = submit()
    engines = WarmPool(worker.settings, keep_warm=False)
    with monkeypatch.context() as patch:
        patch.setattr(formats, "UNDERSTOOD", frozenset())  # of the version before
        assert try_job(worker, engines)
        assert not try_job(worker, engines)
    assert (read_job(database, plain).state, read_job(database, newer).state) == ("succeeded", "queued")
    assert try_job(worker, engines)
    assert read_job(database, newer).state == "succeeded"


def test_each_column_that_old_workers_would_ignore_has_a_format() -> None:
    assert set(ClaimedJob._fields) - FIRST_FORMAT == set(formats.NEWER_COLUMNS)
