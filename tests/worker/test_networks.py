"""A network between worker and database that disconnects, stalls and delays; wrong clocks."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.platform import db
from service.platform.clock import db_now
from service.platform.db import Database, connect
from service.platform.storage import Storage
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.proxy import Proxy
from tests.support.servers import Postgres, wait_until
from tests.worker.conftest import Processes
from tests.worker.jobs import insert_job, read_job
from tests.worker.outcomes import expected_weights, metric_steps, weights

Submit = Callable[..., str]
WaitFor = Callable[..., None]
LIBFAKETIME = "/usr/$LIB/faketime/libfaketime.so.1"
"""Preload the library: its command would start the worker as a child and not kill it."""


@pytest.fixture
def database_url(postgres_of_test: str) -> str:
    """PostgreSQL only: SQLite has no network."""
    return postgres_of_test


@pytest.fixture
def proxy(postgres_server: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(settings: Settings, proxy: Proxy) -> Iterator[Processes]:
    """Processes that reach the database through the proxy."""
    url = settings.sqlalchemy_url.rpartition("@")
    name = url[2].rpartition("/")[2]
    there = f"{url[0]}@127.0.0.1:{proxy.port}/{name}"
    processes = Processes(settings_for(**settings.model_dump() | {"database_url": there}))
    yield processes
    processes.close()


def ends_well(database: Database, storage: Storage, job_id: str) -> bool:
    assert metric_steps(database, job_id) == list(range(1, 11))
    return weights(database, storage, job_id) == expected_weights()


def test_a_slow_network_only_costs_time(
    database: Database,
    storage: Storage,
    far: Processes,
    proxy: Proxy,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    proxy.delay_seconds = 0.02
    job_id = submit()
    far.start_worker()
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 1
    assert ends_well(database, storage, job_id)


@pytest.mark.parametrize("point", ["checkpoint.uploaded", "results.uploaded"])
def test_a_connection_lost_after_a_commit_duplicates_nothing(
    database: Database,
    storage: Storage,
    far: Processes,
    proxy: Proxy,
    submit: Submit,
    wait_for: WaitFor,
    point: str,
) -> None:
    """The transaction is committed but not confirmed, so the worker repeats it under the same fence."""
    job_id = submit()
    far.start_worker(f"{point}:sleep=0.5")
    wait_until((far.marks / point).exists, 120, "the worker is about to write")
    proxy.cut_after(b"COMMIT")
    wait_until(lambda: proxy.num_cut == 1, 120, "the confirmation of the commit is lost")
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 1
    assert ends_well(database, storage, job_id)


def test_a_claim_whose_response_is_lost_expires(
    database: Database,
    storage: Storage,
    far: Processes,
    proxy: Proxy,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit()
    proxy.cut_after(b"Attempt 1 started", b"COMMIT")  # not after a claim that finds nothing
    far.start_worker()
    wait_until(lambda: proxy.num_cut == 1, 120, "the response to the claim is lost")
    wait_for(job_id, state="running")
    with database.transaction() as session:
        session.execute(update(Job).values(lease_expires_at=1))
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 2
    assert ends_well(database, storage, job_id)


def test_a_stalled_network_costs_no_attempt(
    database: Database,
    storage: Storage,
    far: Processes,
    proxy: Proxy,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    """The engine continues; its events are recorded afterwards."""
    job_id = submit({"*": {"step_seconds": 0.05}})
    far.start_worker()
    wait_for(job_id, step=2)
    proxy.stall()
    run = far.settings.runs_dir / job_id / "1" / "checkpoints"
    wait_until(lambda: (run / "step-00000010").exists(), 120, "the engine trains without the database")
    proxy.flow()
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 1
    assert ends_well(database, storage, job_id)


def test_repeated_network_failures_cost_no_attempt(
    database: Database,
    storage: Storage,
    far: Processes,
    proxy: Proxy,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit({"*": {"step_seconds": 0.2}})
    far.start_worker()
    for step in (2, 4, 6, 8):
        wait_until(lambda at=step: read_job(database, job_id).step >= at, 30, f"step {step}")
        proxy.refuse()
        proxy.accept()
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 1
    assert ends_well(database, storage, job_id)


def test_a_process_frozen_in_a_transaction_loses_its_locks(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "IDLE_SECONDS", 1)
    job_id = insert_job(database)
    frozen = connect(settings)
    session = Session(frozen.engine)
    session.execute(select(Job).where(Job.id == job_id).with_for_update())
    with database.transaction() as other:  # waits until the server has ended the first one
        other.execute(update(Job).where(Job.id == job_id).values(priority=3))
    with pytest.raises(DBAPIError):
        session.execute(text("SELECT 1"))
    session.close()
    frozen.engine.dispose()
    assert read_job(database, job_id).priority == 3


def test_a_job_continues_after_its_database_was_read_only(
    own_postgres: Postgres, database: Database, processes: Processes, submit: Submit, wait_for: WaitFor
) -> None:
    """As managed servers are when their disk is nearly full."""
    job_id = submit({"*": {"step_seconds": 0.1}}, hyperparameters={"n_steps": 40})
    processes.start_worker()
    wait_for(job_id, step=4)
    own_postgres.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    own_postgres.execute("SELECT pg_reload_conf()")
    wait_until(lambda: "lease not renewed" in processes.logs())
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
        connection.execute("SELECT pg_reload_conf()")
    wait_for(job_id, state="succeeded")
    assert (read_job(database, job_id).attempt, metric_steps(database, job_id)) == (1, list(range(1, 41)))


@pytest.mark.parametrize("shift", ["+1h", "-1h"])
def test_a_worker_tolerates_a_clock_that_is_an_hour_off(
    database: Database,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
    shift: str,
) -> None:
    """Leases, backoffs and timestamps use the database's clock; the worker only measures durations."""
    clock = {"LD_PRELOAD": LIBFAKETIME, "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    shown = subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"], env=clock)
    assert abs(float(shown) - time.time()) > 3500, "`make system` installs libfaketime"
    job_id = submit({"1": {"die_at": 7}})
    processes.start("-m", "worker", environment=clock)
    wait_for(job_id, state="succeeded")
    job = read_job(database, job_id)
    assert job.attempt == 2
    with database.reading() as session:
        now = session.scalars(select(db_now())).one()
    assert job.started_at is not None
    assert job.finished_at is not None
    assert now - 120 < job.started_at <= job.finished_at <= now
    assert ends_well(database, storage, job_id)
