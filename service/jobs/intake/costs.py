"""The cost of a job, recorded while it runs, and the costs of past jobs, which estimate the next.

A step that a resumed engine repeats is recorded once and counts once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from grpo_engine.contract.events import Started, StepFinished, StepSkipped
from service.jobs.model.names import base_of
from service.jobs.model.states import TERMINAL, JobState
from service.platform.tables.core import Job

Cost = dict[str, Any]
MAX_PAST_JOBS = 200
"""Number of a tenant's newest jobs that are read; older ones may have run on other machines."""
COLUMNS = (Job.model, Job.actual, Job.state, Job.started_at, Job.finished_at)


def with_start(known: Mapping[str, Any] | None, event: Started) -> Cost:
    """The cost with the machine, the model's size and the computation of the newest attempt.

    `loaded_at` is the time at which the first attempt had loaded its model.
    """
    how = event.computation.model_dump(mode="json") if event.computation else None
    return {
        "loaded_at": event.at,
        **(known or {}),
        "machine": event.machine,
        "num_parameters": event.num_parameters,
        "computation": how,
        "last_event_at": event.at,
    }


def with_step(known: Mapping[str, Any] | None, event: StepFinished | StepSkipped) -> Cost:
    """The cost with one more step: its tokens, their seconds, and the highest memory so far.

    `running_seconds` are those since the attempt's start or its step before: a pause does not count.
    """
    before, metrics = {**(known or {})}, event.metrics
    seconds = max(0.0, event.at - before.get("last_event_at", event.at))
    found = {"steps": before.get("steps", 0) + 1, "last_event_at": event.at}
    found["running_seconds"] = round(before.get("running_seconds", 0.0) + seconds, 3)
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


def seconds_per_step(cost: Mapping[str, Any] | None) -> float | None:
    """Mean running time of a step so far; None if no step is done."""
    if not cost or "running_seconds" not in cost:
        return None
    return float(cost["running_seconds"]) / int(cost["steps"])


def shown(job: Job) -> Cost | None:
    """The cost as the API shows it; None if no step is done. `seconds`: from the first start to the end."""
    cost, seconds = job.actual, None
    if not cost or not cost.get("steps"):
        return None
    if job.finished_at is not None and job.started_at is not None:
        seconds = round(max(0.0, job.finished_at - job.started_at), 1)
    names = ("steps", "sampled_tokens", "trained_tokens", "peak_memory_bytes", "machine", "computation")
    return {name: cost.get(name) for name in names} | {"seconds": seconds}


@dataclass(frozen=True)
class PastRun:
    """The measurements of a finished job, or of a probe, which trains nothing."""

    model: str
    """Name of the base model."""
    machine: str
    num_parameters: int
    steps: int
    sampled_tokens: int
    sample_seconds: float
    trained_tokens: int
    train_seconds: float
    other_seconds: float
    """Seconds for loading, grading, evaluating and saving."""
    mean_completion_tokens: float

    def sampling_rate(self, size: int) -> float | None:
        """Tokens per second for a model of `size` parameters; None: nothing was sampled."""
        return self._rate(self.sampled_tokens, self.sample_seconds, size)

    def training_rate(self, size: int) -> float | None:
        return self._rate(self.trained_tokens, self.train_seconds, size)

    def _rate(self, tokens: int, seconds: float, size: int) -> float | None:
        """The measured rate, scaled to `size` (twice the size, half the rate) if both sizes are known."""
        if not tokens or not seconds:
            return None
        return tokens / seconds * (self.num_parameters / size if size and self.num_parameters else 1.0)


def past_run(job: Any) -> PastRun | None:
    """The measurements of a job that has ended; None if it did not finish a step.

    `job`: a row with the `COLUMNS`, such as a Job.
    """
    cost = job.actual or {}
    steps = cost.get("steps", 0)
    if not steps:
        return None
    sample, train = cost["sample_seconds"], cost["train_seconds"]
    return PastRun(
        model=base_of(job.model),
        machine=cost.get("machine", ""),
        num_parameters=cost.get("num_parameters", 0),
        steps=steps,
        sampled_tokens=cost["sampled_tokens"],
        sample_seconds=sample,
        trained_tokens=cost["trained_tokens"],
        train_seconds=train,
        other_seconds=max(0.0, seconds_of_attempts(job) - sample - train),
        mean_completion_tokens=cost["length_sum"] / steps,
    )


def seconds_of_attempts(job: Any) -> float:
    """From a job's first start to its end, without the time between its attempts: a pause may take days.

    The worker's clock, which has stamped the cost, may differ from the database's, and both may be set back.
    """
    cost, started_at, finished_at = job.actual, job.started_at or 0.0, job.finished_at or 0.0
    loading = max(0.0, cost.get("loaded_at", started_at) - started_at)
    has_succeeded = job.state == JobState.SUCCEEDED
    saving = max(0.0, finished_at - cost.get("last_event_at", finished_at)) if has_succeeded else 0.0
    seconds = loading + cost.get("running_seconds", 0.0) + saving
    return float(min(seconds, max(0.0, finished_at - started_at)))


def read_past(session: Session, tenant: str) -> list[PastRun]:
    """Measurements of the tenant's newest jobs that have finished, newest first."""
    newest = select(*COLUMNS).where(Job.tenant == tenant).order_by(Job.created_at.desc(), Job.id.desc())
    rows = session.execute(newest.limit(MAX_PAST_JOBS)).all()
    found = [past_run(row) for row in rows if row.state in TERMINAL]
    return [each for each in found if each is not None]
