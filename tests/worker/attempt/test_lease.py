"""The self-fence of a lease takes effect before another worker can claim the job."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.jobs.store.claiming import ClaimedJob
from service.platform.db import Database
from service.settings import Settings
from tests.support.servers import wait_until
from tests.worker.jobs import claimed
from worker.attempt.lease import Lease, Lost


class SlowDatabase(Database):
    """A real database that calls `delay` in each transaction, after its statements."""

    delay: Callable[[], None]

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with super().transaction() as session:
            yield session
            self.delay()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with super().connection() as connection:
            yield connection
            self.delay()


@pytest.fixture
def job(database: Database) -> ClaimedJob:
    return claimed(database)


def test_the_self_fence_is_measured_from_before_the_claim(
    database: Database, settings: Settings, job: ClaimedJob
) -> None:
    with Lease(database, settings, job, monotonic() - settings.self_fence_seconds) as lease:
        wait_until(lambda: lease.lost, 120, "the fence")
        with pytest.raises(Lost):
            lease.check()


def test_the_self_fence_is_measured_from_before_a_renewal(
    database: Database, settings: Settings, job: ClaimedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delay each response by a minute of the worker's clock."""
    clock = [0.0]
    monkeypatch.setattr("worker.attempt.lease.monotonic", lambda: clock[0])
    slow = SlowDatabase(database.engine)
    slow.delay = lambda: clock.__setitem__(0, clock[0] + 60)
    patient = settings.model_copy(update={"self_fence_seconds": 50.0, "heartbeat_seconds": 0.01})
    with Lease(slow, patient, job, 0.0) as lease:
        wait_until(lambda: lease.lost, 120, "the fence")


def test_a_lease_is_renewed_and_ended_on_a_machine_that_starts_no_more_threads(
    database: Database, settings: Settings, job: ClaimedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def fail() -> None:
        raise OperationalError("COMMIT", {}, Exception("the database is away"))

    renewals: list[float] = []
    counted = SlowDatabase(database.engine)
    counted.delay = lambda: renewals.append(monotonic())
    quick = settings.model_copy(update={"heartbeat_seconds": 0.01, "self_fence_seconds": 10.0})
    with Lease(counted, quick, job, monotonic()) as lease:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        wait_until(lambda: len(renewals) >= 3, 60, "three renewals")
        assert not lease.lost
        counted.delay = fail
        wait_until(lambda: lease.lost, 120, "the fence")
