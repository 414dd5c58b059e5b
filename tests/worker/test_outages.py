"""Outages of PostgreSQL and Redis: real servers that these tests stop and restart."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from service.jobs.progress import logs
from service.jobs.store import wakeups as store_wakeups
from service.jobs.store.wakeups import MAX_WAITING, Wakeups, queue_name
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.servers import Postgres, Redis, wait_until
from tests.worker.conftest import Processes, engine_pids
from tests.worker.jobs import expire_leases, read_job
from tests.worker.outcomes import expected_weights, make_due, messages, metric_steps, weights

Submit = Callable[..., str]
WaitFor = Callable[..., None]


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A Redis that this test may stop."""
    with Redis() as server:
        yield server


@pytest.fixture
def database_url(postgres_of_test: str) -> str:
    """PostgreSQL only; a test that stops it has its own server."""
    return postgres_of_test


@pytest.fixture
def broker_settings(settings: Settings, own_redis: Redis) -> Settings:
    return settings_for(
        **settings.model_dump() | {"broker_url": own_redis.url, "database_url": settings.sqlalchemy_url}
    )


@pytest.fixture
def impatient(broker_settings: Settings) -> Iterator[Wakeups]:
    """With the limits of production."""
    wakeups = Wakeups(broker_settings)
    yield wakeups
    wakeups.close()


@pytest.fixture
def wakeups(broker_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wakeups]:
    """With limits that a busy machine does not exceed."""
    monkeypatch.setattr(store_wakeups, "SEND_SECONDS", 60.0)
    monkeypatch.setitem(store_wakeups.NO_RETRIES, "connect_retries_timeout", 60.0)
    wakeups = Wakeups(broker_settings)
    yield wakeups
    wakeups.close()


@pytest.fixture
def celery(broker_settings: Settings) -> Iterator[Processes]:
    """Starts real Celery workers."""
    processes = Processes(broker_settings)
    yield processes
    processes.close()


def start_celery(celery: Processes) -> None:
    options = ["--loglevel", "INFO", "--without-mingle", "--without-gossip"]
    celery.start("-m", "celery", "-A", "worker.app", "worker", *options)
    wait_until(lambda: "ready." in celery.logs(), 120, "Celery is ready")


def answered_in(wakeups: Wakeups) -> tuple[bool, float]:
    start = time.monotonic()
    sent = wakeups.send("default")
    return sent, time.monotonic() - start


def test_no_kind_of_database_restart_loses_data(
    own_postgres: Postgres,
    database: Database,
    storage: Storage,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit({"*": {"step_seconds": 0.1, "print_steps": True}}, hyperparameters={"n_steps": 40})
    processes.start_worker()
    for step, end in [(4, own_postgres.stop), (12, own_postgres.abort), (20, own_postgres.kill)]:
        wait_until(lambda at=step: read_job(database, job_id).step >= at, 45, f"step {step}")
        end()
        own_postgres.start()
        wait_until(lambda: is_up(database, job_id), 120)
    wait_for(job_id, state="succeeded")
    assert metric_steps(database, job_id) == list(range(1, 41))
    assert weights(database, storage, job_id) == expected_weights(num_steps=40)
    with database.reading() as session:
        log = [line.text for line in logs.lines_after(session, job_id, 0, 1000)]
    assert log == ["fake engine starts", *(f"step {step}" for step in range(1, 41))]


def is_up(database: Database, job_id: str) -> bool:
    """The pool replaces dead connections at their first use."""
    try:
        return bool(read_job(database, job_id))
    except SQLAlchemyError:
        return False


def test_an_engine_without_a_database_is_stopped_before_the_lease_expires(
    own_postgres: Postgres,
    database: Database,
    settings: Settings,
    processes: Processes,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    processes.settings = settings.model_copy(update={"self_fence_seconds": 3.0})
    job_id = submit({"1": {"hang_at": 3}})
    processes.start_worker()
    wait_for(job_id, step=3)
    own_postgres.stop()
    wait_until(lambda: not engine_pids(settings), settings.lease_seconds, "the engine stops")
    own_postgres.start()
    wait_until(lambda: is_up(database, job_id), 120)
    expire_leases(database)
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).attempt == 2
    assert metric_steps(database, job_id) == list(range(1, 11))


def test_a_wake_up_is_kept_in_the_queue_of_its_pool(wakeups: Wakeups, own_redis: Redis) -> None:
    assert wakeups.send("gpu") is True
    client = own_redis.client()
    assert client.llen(queue_name("gpu")) == 1
    client.close()


def test_unread_wake_ups_do_not_accumulate(wakeups: Wakeups, own_redis: Redis) -> None:
    assert all(wakeups.send("default") for _ in range(MAX_WAITING + 20))
    client = own_redis.client()
    assert client.llen(queue_name("default")) == MAX_WAITING
    client.close()


def test_without_a_broker_nothing_is_sent(settings: Settings) -> None:
    assert Wakeups(settings).send("default") is False


def test_sending_without_a_running_broker_fails_at_once(wakeups: Wakeups, own_redis: Redis) -> None:
    assert wakeups.send("default")
    own_redis.kill()
    sent, seconds = answered_in(wakeups)
    assert not sent
    assert seconds < 30
    own_redis.start()
    assert wakeups.send("default")


def test_an_unresponsive_broker_costs_at_most_two_seconds(impatient: Wakeups, own_redis: Redis) -> None:
    wait_until(lambda: impatient.send("default"))
    assert own_redis.process is not None
    own_redis.process.send_signal(signal.SIGSTOP)
    sent, seconds = answered_in(impatient)
    own_redis.process.send_signal(signal.SIGCONT)
    assert not sent
    assert seconds < store_wakeups.SOCKET["socket_timeout"], "the limit of workers, which may wait"


def test_a_wake_up_makes_a_celery_worker_run_the_queue(
    celery: Processes, wakeups: Wakeups, database: Database, submit: Submit, wait_for: WaitFor
) -> None:
    start_celery(celery)
    jobs = [submit(), submit()]
    assert wakeups.send("default")
    for job_id in jobs:
        wait_for(job_id, state="succeeded")
        assert metric_steps(database, job_id) == list(range(1, 11))


def test_a_celery_worker_drains_on_sigterm(
    celery: Processes, wakeups: Wakeups, database: Database, submit: Submit, wait_for: WaitFor
) -> None:
    start_celery(celery)
    job_id = submit({"*": {"step_seconds": 0.2}}, hyperparameters={"n_steps": 1000})
    wakeups.send("default")
    wait_for(job_id, phase="training")
    celery.started[0].terminate()
    assert celery.started[0].wait(timeout=60) == 0
    job = read_job(database, job_id)
    assert (job.state, job.failures, job.fence) == ("queued", 0, 1)
    assert job.checkpoint_step == job.step >= 1
    assert "The worker is shutting down; another one continues the job." in messages(database, job_id)


def test_a_celery_worker_runs_a_job_in_each_slot_and_releases_all_on_sigterm(
    celery: Processes, wakeups: Wakeups, database: Database, submit: Submit, wait_for: WaitFor
) -> None:
    celery.settings = celery.settings.model_copy(update={"gpus": 2, "slots": 2})
    start_celery(celery)
    jobs = [submit({"*": {"step_seconds": 0.2}}, hyperparameters={"n_steps": 1000}) for _ in range(3)]
    assert all(wakeups.send("default") for _ in jobs)
    for job_id in jobs[:2]:
        wait_for(job_id, step=1)
    assert read_job(database, jobs[2]).state == "queued"
    celery.started[0].terminate()
    assert celery.started[0].wait(timeout=60) == 0
    assert [read_job(database, job_id).state for job_id in jobs] == ["queued"] * 3


def test_a_killed_celery_worker_leaves_no_process(
    celery: Processes, settings: Settings, wakeups: Wakeups, submit: Submit, wait_for: WaitFor
) -> None:
    start_celery(celery)
    job_id = submit({"*": {"step_seconds": 0.2}}, hyperparameters={"n_steps": 1000})
    wakeups.send("default")
    wait_for(job_id, phase="training")
    celery.started[0].kill()
    wait_until(lambda: not engine_pids(settings), 120, "the engine dies with its worker")


def test_a_hundred_wake_ups_for_one_job_run_it_once(
    celery: Processes, wakeups: Wakeups, database: Database, submit: Submit, wait_for: WaitFor
) -> None:
    job_id = submit()
    assert all(wakeups.send("default") for _ in range(100))
    start_celery(celery)
    wait_for(job_id, state="succeeded")
    assert read_job(database, job_id).fence == 1


def test_a_broker_restart_disturbs_no_running_job_and_the_worker_reconnects(
    celery: Processes,
    own_redis: Redis,
    wakeups: Wakeups,
    database: Database,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    start_celery(celery)
    running = submit({"*": {"step_seconds": 0.1}})
    wakeups.send("default")
    wait_for(running, phase="training")
    own_redis.kill()
    wait_for(running, state="succeeded")
    assert read_job(database, running).fence == 1
    waiting = submit()
    own_redis.start()
    with database.transaction() as session:
        session.execute(update(Job).values(last_woken_at=0))
    wait_for(waiting, state="succeeded")
    # Celery's explanation of a default has no consequence for jobs
    assert "DeprecationWarning" not in celery.logs()


def test_an_idle_worker_outlasts_a_read_only_broker(
    celery: Processes, own_redis: Redis, submit: Submit, wait_for: WaitFor
) -> None:
    start_celery(celery)
    with own_redis.read_only():
        wait_until(lambda: "read only" in celery.logs(), 120, "the worker notices it")
    wait_for(submit(), state="succeeded")


@pytest.mark.parametrize("lose", [Redis.flush, Redis.evict])
def test_lost_wake_ups_are_resent(
    lose: Callable[[Redis], None],
    celery: Processes,
    own_redis: Redis,
    wakeups: Wakeups,
    database: Database,
    submit: Submit,
    wait_for: WaitFor,
) -> None:
    job_id = submit(not_before=1e12)
    wakeups.send("default")
    lose(own_redis)
    start_celery(celery)
    make_due(database)
    wait_for(job_id, state="succeeded")
