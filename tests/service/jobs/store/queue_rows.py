"""The stored rows of jobs, compared with the model and with the rows one step before."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from service.platform.db import Database
from service.platform.tables.core import Checkpoint, Job, JobEvent, Metric
from tests.service.jobs.store.queue_model import HELD, TERMINAL, Model, ModelJob

STATES = {state.value for state in HELD}
ENDS = {state.value for state in TERMINAL}


@dataclass(frozen=True)
class Rows:
    """By job."""

    jobs: dict[str, Any] = field(default_factory=dict)
    events: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, dict[int, Any]] = field(default_factory=dict)
    checkpoints: dict[str, dict[int, Any]] = field(default_factory=dict)


def read_rows(database: Database) -> Rows:
    """Every column."""
    rows = Rows()
    with database.reading() as session:
        for job in session.execute(select(*Job.__table__.c)):
            rows.jobs[job.id] = job
            rows.events[job.id], rows.metrics[job.id], rows.checkpoints[job.id] = [], {}, {}
        for event in session.execute(select(*JobEvent.__table__.c).order_by(JobEvent.sequence)):
            rows.events[event.job_id].append(event)
        for metric in session.execute(select(*Metric.__table__.c)):
            rows.metrics[metric.job_id][metric.step] = metric.values
        for checkpoint in session.execute(select(*Checkpoint.__table__.c)):
            rows.checkpoints[checkpoint.job_id][checkpoint.step] = checkpoint
    return rows


def check_rows(rows: Rows, model: Model) -> None:
    """Each row equals the model."""
    assert rows.jobs.keys() == model.jobs.keys()
    for job_id, job in model.jobs.items():
        assert _of_row(rows, job_id) == _of_model(job)


def _of_row(rows: Rows, job_id: str) -> dict[str, Any]:
    row = rows.jobs[job_id]
    return {
        "state": (row.state, row.phase, row.finished_at),
        "holder": (row.fence, row.attempt, row.failures, row.lease_owner, row.lease_expires_at),
        "times": (row.created_at, row.not_before, row.last_woken_at),
        "progress": (row.step, row.engine_sequence, row.checkpoint_step),
        "has failed": row.failure is not None,
        "checkpoints": {
            step: (each.fence, each.state_key is not None) for step, each in rows.checkpoints[job_id].items()
        },
        "metrics": {step: values["reward"] for step, values in rows.metrics[job_id].items()},
        "recorded": [(_kind(event), event.fence) for event in rows.events[job_id]],
    }


def _kind(event: Any) -> str:
    if event.type == "status":
        return f"{event.data['state']}/{event.data['phase']}"
    return str(event.type)


def _of_model(job: ModelJob) -> dict[str, Any]:
    return {
        "state": (job.state.value, job.phase, job.finished_at),
        "holder": (job.fence, job.attempt, job.failures, job.owner, job.lease_end),
        "times": (job.created_at, job.not_before, job.woken_at),
        "progress": (job.step, job.engine_sequence, job.checkpoint_step),
        "has failed": job.state.value == "failed",
        "checkpoints": job.checkpoints,
        "metrics": job.metrics,
        "recorded": job.recorded,
    }


def check_history(before: Rows, after: Rows) -> None:
    """Invariants that do not depend on the model."""
    for job_id, row in after.jobs.items():
        events = after.events[job_id]
        assert [event.sequence for event in events] == list(range(1, row.event_sequence + 1))
        assert [event.fence for event in events] == sorted(event.fence for event in events)
        is_held = row.state in STATES
        assert (row.lease_owner is not None, row.lease_expires_at is not None) == (is_held, is_held)
        assert row.attempt <= row.fence
        if job_id in before.jobs:
            _check_step(before, after, job_id)


def _check_step(before: Rows, after: Rows, job_id: str) -> None:
    old, new = before.jobs[job_id], after.jobs[job_id]
    if old.state in ENDS:
        assert (new, after.events[job_id]) == (old, before.events[job_id])
    assert old.fence <= new.fence <= old.fence + 1
    assert after.events[job_id][: len(before.events[job_id])] == before.events[job_id]
    metrics = after.metrics[job_id]
    assert all(metrics[step] == values for step, values in before.metrics[job_id].items())
    recorded = [
        event.data["state"] for event in after.events[job_id][old.event_sequence :] if event.type == "status"
    ]
    assert (recorded[-1:] or [old.state]) == [new.state]
    assert len(recorded) <= 1
