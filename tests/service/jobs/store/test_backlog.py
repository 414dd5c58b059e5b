"""How much waits, what one query reads for many streams, and how sessions use the database."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from service.jobs.model.states import JobState
from service.jobs.progress import news
from service.jobs.store import backlog, history
from service.platform import db
from service.platform.db import Database, connect
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import settings_for
from tests.servers import Postgres
from tests.service.job_samples import add_job

JOBS = "/v1/fine_tuning/jobs"


def test_far_back_a_place_is_not_counted(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [add_job(database, JobState.QUEUED, created_at=float(number)) for number in range(4)]
    query = backlog._HEAD.element.limit(2).subquery()
    places = select(query.c.id, query.c.place).where(query.c.id.in_(ids))
    with database.reading() as session:
        found = dict(session.execute(places, {"of_pool": "default"}).all())
        every = backlog.queue_places(session, [session.get_one(Job, job_id) for job_id in ids])
    assert found == {ids[0]: 1, ids[1]: 2}
    assert every == {job_id: place for place, job_id in enumerate(ids, start=1)}
    monkeypatch.setattr(backlog, "_PLACES", places)
    answer = client.get(f"{JOBS}/{ids[3]}").json()
    assert answer["queue"] == {"position": None, "reason": "more than 1000 ahead of it in the queue"}


def test_a_higher_priority_comes_first_and_other_pools_do_not_count(database: Database) -> None:
    late = add_job(database, JobState.QUEUED, created_at=2.0, priority=1)
    early = add_job(database, JobState.QUEUED, created_at=1.0)
    other = add_job(database, JobState.QUEUED, created_at=0.5, pool="other")
    with database.reading() as session:
        jobs = [session.get_one(Job, job_id) for job_id in (early, late, other)]
        assert backlog.queue_places(session, jobs) == {late: 1, early: 2, other: 1}


def test_unfinished_jobs_are_counted_up_to_the_limit(database: Database) -> None:
    for state in (JobState.QUEUED, JobState.PAUSED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED):
        add_job(database, state)
    add_job(database, JobState.QUEUED, tenant="tenant-b")
    with database.reading() as session:
        assert [backlog.num_unfinished(session, "tenant-a", most) for most in (2, 100)] == [2, 3]


def test_one_query_reads_what_is_new_of_many_jobs(database: Database) -> None:
    ids = [add_job(database, JobState.RUNNING) for _ in range(3)]
    with database.transaction() as session:
        for job_id in ids:
            entries = [history.Entry("message", f"m{number}") for number in range(1, 6)]
            history.append(session, job_id, *entries)
    with database.reading() as session:
        found = news.new_events(session, {ids[0]: 3, ids[1]: 0, ids[2]: 5}, 4)
    numbers = {job_id: [row.sequence for row in rows] for job_id, rows in found.items()}
    assert numbers == {ids[0]: [4, 5], ids[1]: [1, 2, 3, 4]}


def test_a_single_statement_is_committed_and_a_failed_transaction_is_not(database: Database) -> None:
    job_id = add_job(database, JobState.QUEUED)
    with database.statement() as session:
        session.execute(text("UPDATE jobs SET priority = 5"))
    with pytest.raises(LookupError):
        _fail_after(database, "UPDATE jobs SET priority = 6")
    with database.reading() as session:
        assert session.get_one(Job, job_id).priority == 5


def _fail_after(database: Database, statement: str) -> None:
    with database.transaction() as session:
        session.execute(text(statement))
        raise LookupError


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_connections_that_rested_through_a_restart_are_replaced(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "RESTED_SECONDS", 0)  # a quick machine restarts within the usual rest
    with Postgres() as server:
        database = connect(settings_for(settings.home, server.url))
        with database.reading() as session:
            assert session.scalar(text("SELECT 1")) == 1
        server.restart()
        with database.transaction() as session:
            assert session.scalar(text("SELECT 2")) == 2
        database.engine.dispose()
