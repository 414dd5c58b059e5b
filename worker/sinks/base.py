"""What every sink can do, and what it is told of a job.

Boundary: no sink's package is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo_engine.config.job import hyperparameters_of
from service.jobs.model.methods import parsed_method
from service.jobs.model.states import JobState
from service.settings import Settings
from service.sinks.outbox import Target


@dataclass(frozen=True)
class About:
    """A job as sinks show it."""

    job_id: str
    tenant: str
    settings: Mapping[str, Any]
    """The integration's own."""
    config: Mapping[str, Any]
    """What the job runs with, flat; no graders, which may hold whole programs."""
    known_step: int
    """Written up to here, as far as the database knows; -1: nothing."""
    home: Path
    tensorboard_root: Path

    @classmethod
    def of(cls, target: Target, settings: Settings) -> About:
        job = target.job
        given = {"model": job.model, "training_file": job.training_file, "seed": job.seed}
        method = parsed_method(job.method)
        hyperparameters = dict(flat(hyperparameters_of(method).model_dump(mode="json")))
        return cls(
            job.id,
            job.tenant,
            target.settings,
            {**given, "method": method.type, **hyperparameters},
            target.step,
            settings.home.resolve(),
            settings.tensorboard_root.resolve(),
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as `lora.rank`; lists (of guards, of stop texts) and what is not set are left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None and not isinstance(value, list):
            yield f"{prefix}{name}", value


class Sink(Protocol):
    """One open run in one sink. What it has is the truth: after a crash it says itself where to go on."""

    @property
    def last_step(self) -> int:
        """The newest step that it surely holds whole; -1: none."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One step; steps come in ascending order, all above `last_step`."""

    def flush(self) -> None:
        """What was written survives this process."""

    def close(self, state: JobState) -> None:
        """`state`: of the job; where it has not ended, this run will go on."""
