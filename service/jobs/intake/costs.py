"""What a job has cost, recorded while it runs, and the cost of past jobs as a measure of the next.

Boundary: pure functions over the engine's events, and one bounded query. A step that a resumed engine
repeats is recorded once and counts once; the job's own clock has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from grpo_engine.contract.events import Started
from service.jobs.intake.recent_results import RecentResults
from service.jobs.model.names import base_of
from service.jobs.model.states import TERMINAL
from service.platform.db import Database
from service.platform.tables.core import Job

Cost = dict[str, Any]
LOOKED_AT = 200
"""Newest jobs of a tenant; what is older says little about today's machines."""


def with_start(known: Mapping[str, Any] | None, event: Started) -> Cost:
    """The machine and the model's size, as the newest attempt reports them."""
    return {**(known or {}), "machine": event.machine, "num_parameters": event.num_parameters}


def with_step(known: Mapping[str, Any] | None, metrics: Mapping[str, float]) -> Cost:
    """One more step: its tokens, the seconds that they took, and the highest memory so far."""
    before = {**(known or {})}
    found = {"steps": before.get("steps", 0) + 1}
    for what, phase in (("sampled", "sample"), ("trained", "train")):
        seconds = metrics.get(f"timing/{phase}_seconds", 0.0)
        tokens = round(metrics.get(f"perf/{what}_tokens_per_second", 0.0) * seconds)
        found[f"{what}_tokens"] = before.get(f"{what}_tokens", 0) + tokens
        found[f"{phase}_seconds"] = round(before.get(f"{phase}_seconds", 0.0) + seconds, 3)
    length = metrics.get("completions/mean_length", 0.0)
    found["length_sum"] = round(before.get("length_sum", 0.0) + length, 3)
    peak = int(metrics.get("memory/peak_bytes", 0))
    found["peak_memory_bytes"] = max(before.get("peak_memory_bytes", 0), peak)
    return before | found


def shown(job: Job) -> Cost | None:
    """The cost as the API shows it; None if no step is done. `seconds`: from the first start to the end."""
    known = job.actual
    if not known or not known.get("steps"):
        return None
    is_over = job.finished_at is not None and job.started_at is not None
    names = ("steps", "sampled_tokens", "trained_tokens", "peak_memory_bytes", "machine")
    seconds = round(job.finished_at - job.started_at, 1) if is_over else None  # type: ignore[operator]
    return {name: known.get(name) for name in names} | {"seconds": seconds}


@dataclass(frozen=True)
class Past:
    """A job (or a probe, which trains nothing) that has ended, as a measure of others."""

    model: str
    """The base."""
    machine: str
    num_parameters: int
    steps: int
    sampled_tokens: int
    sample_seconds: float
    trained_tokens: int
    train_seconds: float
    other_seconds: float
    """Loading, grading, evaluating, saving."""
    mean_completion_tokens: float

    def sampling_rate(self, size: int) -> float | None:
        """Tokens per second for a model of `size` parameters; None: nothing was sampled."""
        return self._rate(self.sampled_tokens, self.sample_seconds, size)

    def training_rate(self, size: int) -> float | None:
        return self._rate(self.trained_tokens, self.train_seconds, size)

    def _rate(self, tokens: int, seconds: float, size: int) -> float | None:
        """Half as fast for a model twice as large; unscaled if one of the sizes is unknown."""
        if not tokens or not seconds:
            return None
        return tokens / seconds * (self.num_parameters / size if size and self.num_parameters else 1.0)


def past_of(model: str, cost: Mapping[str, Any], wall_seconds: float) -> Past | None:
    """None if the job did not finish a step."""
    steps = cost.get("steps", 0)
    if not steps:
        return None
    sample, train = cost["sample_seconds"], cost["train_seconds"]
    return Past(
        model=base_of(model),
        machine=cost.get("machine", ""),
        num_parameters=cost.get("num_parameters", 0),
        steps=steps,
        sampled_tokens=cost["sampled_tokens"],
        sample_seconds=sample,
        trained_tokens=cost["trained_tokens"],
        train_seconds=train,
        other_seconds=max(0.0, wall_seconds - sample - train),
        mean_completion_tokens=cost["length_sum"] / steps,
    )


def read_past(session: Session, tenant: str) -> list[Past]:
    """Of the tenant's newest rows those that have ended, newest first."""
    columns = (Job.model, Job.actual, Job.state, Job.finished_at, Job.started_at, Job.created_at)
    newest = select(*columns).where(Job.tenant == tenant).order_by(Job.created_at.desc(), Job.id.desc())
    rows = session.execute(newest.limit(LOOKED_AT)).all()
    found = [
        past_of(row.model, row.actual, (row.finished_at or 0.0) - (row.started_at or 0.0))
        for row in rows
        if row.actual and row.state in TERMINAL
    ]
    return [each for each in found if each is not None]


class PastJobs(RecentResults[Sequence[Past]]):
    """`read_past` of each tenant, queried at most once a minute by this process. Shared by all threads."""

    def __init__(self) -> None:
        super().__init__(seconds=60.0, max_entries=1024)

    def of(self, database: Database, tenant: str, *, fresh: bool = False) -> Sequence[Past]:
        """`fresh`: as they are now."""
        found = None if fresh else self.get(tenant)
        if found is None:
            with database.reading() as session:
                found = read_past(session, tenant)
            self.put(tenant, found)
        return found
