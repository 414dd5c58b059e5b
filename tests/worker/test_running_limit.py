"""Workers respect the limit of running jobs per tenant, on SQLite and PostgreSQL."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from service.jobs.model.states import HELD, JobState
from service.jobs.store import claiming, queue
from service.jobs.store.claiming import ClaimedJob
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.threads import at_once
from tests.worker.jobs import insert_job, read_job
from worker.attempt.runner import claim as claim_as_worker
from worker.attempt.worker import Worker
from worker.launchers.gpu_reservation import Reservation


def claim(database: Database, max_running: int | None = 2) -> ClaimedJob | None:
    with database.transaction() as session:
        return claiming.claim(session, pool="default", worker="w", lease_seconds=60, max_running=max_running)


def claimed_ids(database: Database, max_running: int | None = 2) -> list[str]:
    """Claim jobs until none may run."""
    found = []
    while job := claim(database, max_running):
        found.append(job.id)
    return found


def test_a_tenant_at_its_limit_waits_and_others_do_not(database: Database) -> None:
    first, second, _third = (insert_job(database, tenant="a", created_at=float(n)) for n in range(3))
    later = insert_job(database, tenant="b", created_at=9.0)
    assert claimed_ids(database) == [first, second, later]


def test_all_jobs_are_claimed_without_a_limit(database: Database) -> None:
    ids = [insert_job(database, tenant="a", created_at=float(n)) for n in range(3)]
    assert claimed_ids(database, None) == ids


def test_a_finished_job_makes_room_for_the_next(database: Database) -> None:
    first, _second, third = (insert_job(database, tenant="a", created_at=float(n)) for n in range(3))
    claimed_ids(database)
    with database.transaction() as session:
        assert queue.finish(session, first, 1, JobState.SUCCEEDED)
    assert claimed_ids(database) == [third]


@pytest.mark.parametrize("state", sorted(HELD))
def test_jobs_held_by_a_worker_count_as_running(database: Database, state: JobState) -> None:
    insert_job(database, tenant="a", state=state.value)
    insert_job(database, tenant="a")
    assert claim(database, 1) is None


@pytest.mark.parametrize("state", [JobState.PAUSED, JobState.SUCCEEDED, JobState.CANCELLED])
def test_jobs_without_a_worker_do_not_count(database: Database, state: JobState) -> None:
    insert_job(database, tenant="a", state=state.value)
    job_id = insert_job(database, tenant="a")
    assert claimed_ids(database, 1) == [job_id]


def test_sixteen_concurrent_workers_never_exceed_the_limit(database: Database) -> None:
    for tenant in "abc":
        for _ in range(8):
            insert_job(database, tenant=tenant)
    at_once(16, lambda _: claimed_ids(database, 3))
    with database.reading() as session:
        running = session.scalars(select(Job.tenant).where(Job.state == JobState.RUNNING.value))
        assert Counter(running) == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_worker_stopped_during_its_claim_blocks_others_only_briefly(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = insert_job(database)
    stopped = database.transaction()
    session = stopped.__enter__()
    with monkeypatch.context() as brief:
        brief.setattr(claiming, "CLAIM_PAUSE", "2s")
        claiming.claim(session, pool="default", worker="stopped", lease_seconds=60, max_running=1)
    job = claim(database, 1)
    assert job is not None
    assert (job.id, read_job(database, job_id).lease_owner, job.fence) == (job_id, "w", 1)
    with pytest.raises(DBAPIError):
        stopped.__exit__(None, None, None)


def test_a_worker_uses_the_limit_of_its_settings(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    limited = settings.model_copy(update={"max_running_jobs": 1})
    worker = Worker.open(limited, "w", threading.Event())
    ids = [insert_job(database, created_at=float(n), tenant="a") for n in range(2)]
    claims = [claim_as_worker(worker, Reservation()), claim_as_worker(worker, Reservation())]
    worker.database.engine.dispose()
    assert [claimed and claimed[0].id for claimed in claims] == [ids[0], None]
    assert read_job(database, ids[1]).state == JobState.QUEUED.value
