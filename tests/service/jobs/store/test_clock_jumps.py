"""A jump of the database's clock, such as after a machine's sleep, is no reason to take jobs from workers."""

from collections.abc import Iterator

import pytest

from service.jobs.model.states import JobState
from service.jobs.store import queue
from service.jobs.store.wakeups import Wakeups
from service.platform.db import Database
from service.settings import Settings
from tests.service.jobs.store.virtual_clock import set_clock, virtual_clock
from tests.support.servers import wait_until
from tests.worker.jobs import claimed, read_job
from worker.clock_jumps import ClockJumps
from worker.sweeper import sweep_once

RECOVERY = {"heartbeat_seconds": 0.2, "self_fence_seconds": 0.5, "lease_seconds": 1.0}


@pytest.fixture
def clocked(database: Database) -> Iterator[Database]:
    with virtual_clock(database):
        yield database


def set_to(database: Database, now: float) -> None:
    with database.transaction() as session:
        set_clock(session, now)


def test_a_live_worker_keeps_its_job_when_the_clock_jumps_and_a_lost_worker_does_not(
    clocked: Database, settings: Settings
) -> None:
    quick, jumps = settings.model_copy(update=RECOVERY), ClockJumps(settings.model_copy(update=RECOVERY))
    live, lost = claimed(clocked), claimed(clocked)

    def swept() -> list[str]:
        return [found.id for found in sweep_once(clocked, Wakeups(quick), quick, jumps=jumps)]

    assert swept() == []
    set_to(clocked, 3600.0)
    assert swept() == []
    with clocked.connection() as session:
        assert queue.renew(session, live.id, live.fence, lease_seconds=60) is JobState.RUNNING
    wait_until(lambda: swept() == [lost.id], 120, "the lost worker keeps its job")
    assert read_job(clocked, live.id).state == "running"


def test_a_lease_that_expires_while_the_clock_is_steady_is_swept_at_once(
    clocked: Database, settings: Settings
) -> None:
    jumps = ClockJumps(settings)
    sweep_once(clocked, Wakeups(settings), settings, jumps=jumps)
    job = claimed(clocked)
    with clocked.transaction() as session:
        assert queue.renew(session, job.id, job.fence, lease_seconds=0) is JobState.RUNNING
    (found,) = sweep_once(clocked, Wakeups(settings), settings, jumps=jumps)
    assert found.id == job.id
