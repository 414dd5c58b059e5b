"""Training and evaluation of a step: one row, whichever comes first."""

import pytest
from sqlalchemy import select

from grpo_engine.contract.events import Evaluated, Event
from service.platform.db import Database
from service.platform.tables.core import Metric
from tests.worker.attempt.test_recording import record, step


def metrics_of(database: Database, job_id: str) -> dict[int, dict[str, float]]:
    with database.reading() as session:
        return {
            row.step: row.values for row in session.scalars(select(Metric).where(Metric.job_id == job_id))
        }


def evaluated(number: int, sequence: int, reward: float) -> Evaluated:
    return Evaluated(sequence=sequence, step=number, metrics={"reward": reward})


def test_an_evaluation_before_training_is_the_baseline_without_a_row(database: Database, job_id: str) -> None:
    record(database, job_id, [evaluated(0, 1, 0.2), step(1, 2)])
    assert metrics_of(database, job_id) == {1: {"reward": 0.5}}


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("evaluation_first", [True, False])
def test_training_and_evaluation_of_a_step_share_a_row(
    database: Database, job_id: str, evaluation_first: bool, in_one_batch: bool
) -> None:
    events: list[Event] = [step(5, 1), evaluated(5, 2, 0.25)]
    if evaluation_first:
        events = [evaluated(5, 1, 0.25), step(5, 2)]
    for batch in [events] if in_one_batch else [events[:1], events[1:]]:
        record(database, job_id, batch)
    record(database, job_id, [step(5, 3, loss=9.0), evaluated(5, 4, 0.75)])
    assert metrics_of(database, job_id) == {5: {"reward": 0.5, "eval/reward": 0.25}}
