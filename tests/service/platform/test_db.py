"""Sessions and their connections."""

import time
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from service.jobs.model.states import JobState
from service.platform.db import Database, connect
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import on_postgresql, settings_for
from tests.ports import free_port
from tests.service.job_samples import add_job
from tests.support.servers import Postgres


def test_a_transaction_is_committed_unless_it_raises(database: Database) -> None:
    job_id = add_job(database, JobState.QUEUED)
    with database.transaction() as session:
        session.execute(text("UPDATE jobs SET priority = 5"))
    with pytest.raises(LookupError):
        _fail_after(database, "UPDATE jobs SET priority = 6")
    with database.reading() as session:
        assert session.get_one(Job, job_id).priority == 5


def _fail_after(database: Database, statement: str) -> None:
    with database.transaction() as session:
        session.execute(text(statement))
        raise LookupError


@on_postgresql
def test_a_transaction_whose_connection_was_lost_raises_and_the_next_one_gets_another(
    database: Database,
) -> None:
    with pytest.raises(OperationalError) as error, database.transaction() as session:
        session.execute(select(func.pg_terminate_backend(func.pg_backend_pid())))
    assert error.value.connection_invalidated
    with database.transaction() as session:
        assert session.scalar(select(1)) == 1


@on_postgresql
@pytest.mark.parametrize(
    "setting", ["TRANSACTION READ ONLY", "LOCAL idle_in_transaction_session_timeout = '1ms'"]
)
def test_a_server_that_is_read_only_or_ends_idle_transactions_counts_as_an_outage(
    database: Database, setting: str
) -> None:
    with pytest.raises(OperationalError) as error:
        _write_until_refused(database, setting)
    assert error.value.connection_invalidated
    with database.transaction() as session:
        assert session.scalar(select(1)) == 1


def _write_until_refused(database: Database, setting: str) -> None:
    with database.transaction() as session:
        session.execute(text(f"SET {setting}"))
        while True:
            session.execute(text("UPDATE jobs SET priority = 5"))
            time.sleep(0.02)


@on_postgresql
def test_every_connection_limits_idle_transactions_and_waits_for_locks(database: Database) -> None:
    for _ in range(2):  # the second time, the connection comes from the pool
        with database.transaction() as session:
            assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "20s"
            assert session.scalar(text("SHOW lock_timeout")) == "10s"


def test_pooled_connections_are_replaced_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with Postgres() as server:
        database = connect(settings_for(tmp_path, server.url))
        with database.reading() as session:
            assert session.scalar(text("SELECT 1")) == 1
        server.restart()
        with database.transaction() as session:
            assert session.scalar(text("SELECT 2")) == 2
        database.engine.dispose()


@on_postgresql
def test_an_unreachable_server_is_an_operational_error(settings: Settings) -> None:
    nowhere = SecretStr(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    away = connect(settings.model_copy(update={"database_url": nowhere}))
    with pytest.raises(OperationalError, match="onnection refused"), away.reading() as session:
        session.execute(select(1))
