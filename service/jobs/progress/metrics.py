"""A job's metrics: flat rows by step, thinned for charts, or as CSV with `step` first."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, or_, select, tuple_
from sqlalchemy.orm import Session

from service.platform.tables.core import Job, Metric

MetricRow = dict[str, Any]
EVALUATION = "eval/"
"""Prefix of the metrics of held-out rows."""
EVALUATED = ("eval/reward", "eval/loss")
"""Metrics of which every evaluation has at least one."""


def add_metrics(session: Session, job_id: str, measured: Sequence[tuple[int, Mapping[str, float]]]) -> None:
    """Store (step, values) pairs of training or evaluations in the rows of their steps, in any order.

    If a step was repeated, its names already exist, and the first write wins. The caller has locked the job's
    row.
    """
    steps = {step for step, _ in measured}
    query = select(Metric).where(Metric.job_id == job_id, Metric.step.in_(steps))
    rows = {row.step: row for row in session.scalars(query)}
    for step, values in measured:
        row = rows.get(step)
        if row is None:
            rows[step] = Metric(job_id=job_id, step=step, values=dict(values))
        elif values.keys().isdisjoint(row.values):
            row.values = {**row.values, **values}
    session.add_all(rows.values())
    session.flush()


def metric_rows(
    session: Session,
    tenant: str,
    job_id: str,
    *,
    after_step: int = -1,
    before_step: int | None = None,
    names: Collection[str] | None = None,
    limit: int | None = None,
) -> list[MetricRow]:
    """At most `limit` rows `{"step": …, name: value, …}` in order of steps, with only `names` if given."""
    query = _between(tenant, job_id, after_step, before_step).limit(limit)
    return [_flat(metric, names) for metric in session.scalars(query)]


def evaluations_at(session: Session, job_id: str, steps: Collection[int]) -> dict[int, dict[str, float]]:
    """Step → metrics of the held-out rows, `{"eval/reward": …}`, without retention sets, `eval/<name>/…`."""
    rows = session.scalars(select(Metric).where(Metric.job_id == job_id, Metric.step.in_(steps)))
    return {
        row.step: {
            name: value
            for name, value in row.values.items()
            if name.startswith(EVALUATION) and name.count("/") == 1
        }
        for row in rows
    }


def newest_rewards(session: Session, jobs: Sequence[Job]) -> dict[str, float]:
    """Job → mean training reward of its newest step, in one query for all jobs."""
    steps = [(job.id, job.step) for job in jobs if job.step]
    if not steps:
        return {}
    reward = Metric.values["reward"].as_float()
    query = select(Metric.job_id, reward).where(tuple_(Metric.job_id, Metric.step).in_(steps))
    return {job_id: value for job_id, value in session.execute(query) if value is not None}


def thinned_rows(
    session: Session,
    tenant: str,
    job_id: str,
    *,
    after_step: int,
    before_step: int | None = None,
    names: Collection[str] | None,
    max_points: int,
) -> list[MetricRow]:
    """At most `max_points` rows, evenly spread over all between these steps; up to half are evaluations.

    Evaluations are rare: thinned with the other rows, most of them would be missing.
    """
    query = _between(tenant, job_id, after_step, before_step)
    all_steps = query.with_only_columns(Metric.step)
    steps = session.scalars(all_steps).all()
    if len(steps) > max_points >= 4:
        evaluated = or_(*(Metric.values[name].as_string().is_not(None) for name in EVALUATED))
        kept = thinned(session.scalars(all_steps.where(evaluated)).all(), max_points // 2)
        steps = [*kept, *thinned(steps, max_points - len(kept))]
    else:
        steps = thinned(steps, max_points)
    return [_flat(metric, names) for metric in session.scalars(query.where(Metric.step.in_(steps)))]


def thinned(values: Sequence[int], max_points: int) -> list[int]:
    """At most `max_points` (2 or more) of the values, evenly spread, with the first and the last."""
    if len(values) <= max_points:
        return list(values)
    last = len(values) - 1
    return [values[round(index * last / (max_points - 1))] for index in range(max_points)]


def to_csv(rows: Sequence[MetricRow]) -> str:
    """One line per step. `step` is the first column, the others are sorted; a missing value is empty."""
    columns = sorted({name for row in rows for name in row} - {"step"})
    file = io.StringIO()
    writer = csv.DictWriter(file, ["step", *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _between(tenant: str, job_id: str, after_step: int, before_step: int | None) -> Select[Metric]:
    """The metrics of the tenant's job in order of steps, without both ends."""
    query = select(Metric).join(Job, Job.id == Metric.job_id).where(Job.id == job_id, Job.tenant == tenant)
    if before_step is not None:
        query = query.where(Metric.step < before_step)
    return query.where(Metric.step > after_step).order_by(Metric.step)


def _flat(metric: Metric, names: Collection[str] | None) -> MetricRow:
    values = metric.values
    chosen = values if names is None else {name: values[name] for name in names if name in values}
    return {"step": metric.step, **chosen}
