"""Counts and places in the queue, and the query that serves many streams."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from service.jobs.model.states import JobState
from service.jobs.progress import stream
from service.jobs.store import history, queue_health
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.workers import WorkerHost
from tests.service.job_samples import add_job, report_machine

JOBS = "/v1/fine_tuning/jobs"


def test_a_place_beyond_the_maximum_is_not_counted(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_machine(database)
    ids = [add_job(database, JobState.QUEUED, created_at=float(number)) for number in range(4)]
    query = queue_health._PLACED.element.limit(2).subquery()
    places = select(query.c.id, query.c.place).where(query.c.id.in_(ids))
    with database.reading() as session:
        found = dict(session.execute(places, {"of_pool": "default"}).all())
        every = queue_health.queue_places(session, [session.get_one(Job, job_id) for job_id in ids])
    assert found == {ids[0]: 1, ids[1]: 2}
    assert every == {job_id: place for place, job_id in enumerate(ids, start=1)}
    monkeypatch.setattr(queue_health, "_PLACES", places)
    answer = client.get(f"{JOBS}/{ids[3]}").json()
    assert answer["queue"] == {"position": None, "reason": "at least 1000 ahead of it in the queue"}


@pytest.mark.parametrize(
    ("mode", "commands"),
    [
        ("embedded", "`grpo up` or `grpo worker`"),
        ("production", "`grpo worker` or `celery -A worker.app worker`"),
    ],
)
def test_a_queued_job_without_a_running_worker_says_how_to_start_one(
    client: TestClient, database: Database, app: FastAPI, mode: str, commands: str
) -> None:
    app.state.settings = app.state.settings.model_copy(update={"mode": mode})
    job_id = add_job(database, JobState.QUEUED, attempt=1, not_before=2.0**40)
    no_worker = {"position": 1, "reason": f"no worker is running: start one with {commands}"}
    report_machine(database, pool="other")
    assert client.get(f"{JOBS}/{job_id}").json()["queue"] == no_worker
    report_machine(database)
    assert "retrying after attempt 1" in client.get(f"{JOBS}/{job_id}").json()["queue"]["reason"]
    with database.transaction() as session:
        session.execute(update(WorkerHost).values(seen_at=WorkerHost.seen_at - 61))
    assert client.get(JOBS).json()["data"][0]["queue"] == no_worker


def test_a_higher_priority_comes_first_and_other_pools_do_not_count(database: Database) -> None:
    late = add_job(database, JobState.QUEUED, created_at=2.0, priority=1)
    early = add_job(database, JobState.QUEUED, created_at=1.0)
    other = add_job(database, JobState.QUEUED, created_at=0.5, pool="other")
    with database.reading() as session:
        jobs = [session.get_one(Job, job_id) for job_id in (early, late, other)]
        assert queue_health.queue_places(session, jobs) == {late: 1, early: 2, other: 1}


def test_unfinished_jobs_are_counted_up_to_the_limit(database: Database) -> None:
    for state in (JobState.QUEUED, JobState.PAUSED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED):
        add_job(database, state)
    add_job(database, JobState.QUEUED, tenant="tenant-b")
    with database.reading() as session:
        assert [queue_health.num_unfinished(session, "tenant-a", most) for most in (2, 100)] == [2, 3]


def test_one_query_reads_the_new_events_of_many_jobs(database: Database) -> None:
    ids = [add_job(database, JobState.RUNNING) for _ in range(3)]
    with database.transaction() as session:
        for job_id in ids:
            entries = [history.HistoryEntry("message", f"m{number}") for number in range(1, 6)]
            history.append(session, job_id, *entries)
    with database.reading() as session:
        found = stream.new_events(session, {ids[0]: 3, ids[1]: 0, ids[2]: 5}, 4)
    numbers = {job_id: [row.sequence for row in rows] for job_id, rows in found.items()}
    assert numbers == {ids[0]: [4, 5], ids[1]: [1, 2, 3, 4]}
