"""Leases of a table with a composite key, on SQLite and PostgreSQL."""

from collections import Counter

import pytest
from sqlalchemy import select, update

from service.jobs.model.states import JobState
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.leases import QUIET
from service.platform.tables.sinks import JobSink
from service.sinks.outbox import LEASES
from tests.service.job_samples import add_job
from tests.threads import at_once

Claim = tuple[str, str, int]


def add_sinks(database: Database, *types: str) -> str:
    job_id = add_job(database, JobState.RUNNING)
    with database.transaction() as session:
        session.add_all(JobSink(job_id=job_id, type=type_) for type_ in types)
    return job_id


def claim(database: Database, seconds: float = 60.0) -> Claim | None:
    due = select(JobSink.job_id, JobSink.type).where(LEASES.has_expired).order_by(JobSink.type)
    claiming = LEASES.claim(due, seconds).returning(JobSink.job_id, JobSink.type, JobSink.claim)
    with database.transaction() as session:
        row = session.execute(claiming, execution_options=QUIET).one_or_none()
    return None if row is None else (row.job_id, row.type, row.claim)


def seconds_left(database: Database) -> float:
    with database.reading() as session:
        return session.scalars(select(JobSink.due_at - db_now())).one() or 0.0


def test_a_claim_takes_the_first_due_row_and_only_that_one(database: Database) -> None:
    job_id = add_sinks(database, "mlflow", "wandb")
    assert [claim(database) for _ in range(3)] == [(job_id, "mlflow", 1), (job_id, "wandb", 1), None]


def test_an_expired_lease_is_claimed_again_under_the_next_number(database: Database) -> None:
    job_id = add_sinks(database, "wandb")
    assert claim(database, seconds=0.0) == (job_id, "wandb", 1)
    assert claim(database) == (job_id, "wandb", 2)
    with database.transaction() as session:
        assert not LEASES.write(session, job_id, "wandb", number=1, step=7)
        assert LEASES.write(session, job_id, "wandb", number=2, step=9)
    with database.reading() as session:
        assert session.scalars(select(JobSink.step)).one() == 9


def test_a_renewal_extends_the_lease_of_its_holder_alone(database: Database) -> None:
    job_id = add_sinks(database, "wandb")
    claim(database)
    for number, expected in ((0, 60.0), (1, 600.0)):
        held = LEASES.is_held(job_id, "wandb", number=number)
        with database.transaction() as session:
            session.execute(LEASES.renew(held, 600.0), execution_options=QUIET)
        assert seconds_left(database) == pytest.approx(expected, abs=30)


def test_an_inactive_row_is_neither_due_nor_held(database: Database) -> None:
    job_id = add_sinks(database, "wandb")
    with database.transaction() as session:
        session.execute(update(JobSink).values(due_at=None))
    assert claim(database) is None
    with database.transaction() as session:
        assert not LEASES.write(session, job_id, "wandb", number=0, step=1)


def test_concurrent_claims_take_different_rows(database: Database) -> None:
    for _ in range(12):
        add_sinks(database, "mlflow", "wandb")
    found: Counter[Claim] = Counter()

    def work(_number: int) -> None:
        while (row := claim(database)) is not None:
            found[row] += 1

    at_once(4, work)
    assert (len(found), set(found.values())) == (24, {1})
