"""The queue behaves like its model, on both databases, for any schedule of workers, users and clocks.

`QUEUE_MODEL_SCHEDULES` is the number of random schedules of a hundred steps in a long search.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from service.platform.db import Database
from tests.service.jobs.store.queue_machine import QueueMachine
from tests.service.jobs.store.virtual_clock import virtual_clock

SCHEDULES = int(os.environ.get("QUEUE_MODEL_SCHEDULES", "0"))


@pytest.fixture
def clocked(database: Database) -> Iterator[Database]:
    with virtual_clock(database):
        yield database


def test_every_schedule_behaves_like_the_model(clocked: Database) -> None:
    run_state_machine_as_test(
        lambda: QueueMachine(clocked),
        settings=settings(
            max_examples=SCHEDULES or 8,
            stateful_step_count=100 if SCHEDULES else 60,
            derandomize=not SCHEDULES,
            # a long search also looks for the shortest schedule; that may take minutes
            phases=[Phase.generate, Phase.shrink] if SCHEDULES else [Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
