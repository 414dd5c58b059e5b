"""The queue behaves like its model, on both databases, for any schedule of workers, users and clocks.

`QUEUE_MODEL_SCHEDULES` is the number of random schedules of a hundred steps in a long search.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import text
from sqlalchemy.ext.compiler import compiles

from service.platform import clock
from service.platform.db import Database
from tests.service.jobs.store.queue_machine import QueueMachine

SCHEDULES = int(os.environ.get("QUEUE_MODEL_SCHEDULES", "0"))


@pytest.fixture
def clocked(database: Database) -> Iterator[Database]:
    """The database's clock is a row that the test sets."""

    def read(_element: clock.db_now, _compiler: Any, **_kwargs: Any) -> str:
        return "(SELECT seconds FROM virtual_clock)"

    with database.transaction() as session:
        session.execute(text("CREATE TABLE virtual_clock (seconds double precision NOT NULL)"))
        session.execute(text("INSERT INTO virtual_clock VALUES (0)"))
    for dialect in ("sqlite", "postgresql"):
        compiles(clock.db_now, dialect)(read)
    yield database
    compiles(clock.db_now, "sqlite")(clock._sqlite)
    compiles(clock.db_now, "postgresql")(clock._postgresql)


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
