"""The interface of a sink, and the job data that sinks receive.

Boundary: no sink's package is imported here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from grpo_engine.config.job import hyperparameters_of
from service.jobs.model.methods import parsed_method
from service.jobs.model.states import JobState
from service.platform.tables.core import Job
from service.platform.tables.sinks import JobSink
from service.settings import Settings


@dataclass(frozen=True)
class SinkJob:
    """The data of a job that sinks show."""

    job_id: str
    tenant: str
    settings: Mapping[str, Any]
    """The sink's settings in the job's integration."""
    config: Mapping[str, Any]
    """The job's parameters, flat, without graders, which may contain whole programs."""
    known_step: int
    """Last written step according to the database; -1: none."""
    home: Path
    tensorboard_root: Path

    @classmethod
    def of(cls, job: Job, sink: JobSink, settings: Settings) -> Self:
        given = {"model": job.model, "training_file": job.training_file, "seed": job.seed}
        method = parsed_method(job.method)
        hyperparameters = dict(flat(hyperparameters_of(method).model_dump(mode="json")))
        return cls(
            job.id,
            job.tenant,
            sink.settings,
            {**given, "method": method.type, **hyperparameters},
            sink.step,
            settings.home.resolve(),
            settings.tensorboard_root.resolve(),
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as `lora.rank`, without lists (guards, stop texts) and unset values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None and not isinstance(value, list):
            yield f"{prefix}{name}", value


class Sink(Protocol):
    """One open run in one sink. After a crash, the sink's own data determines where to continue."""

    @property
    def last_step(self) -> int:
        """The newest step that is complete in the sink; -1: none."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one step; steps are ascending and above `last_step`."""

    def flush(self) -> None:
        """Make everything written survive this process."""

    def close(self, state: JobState) -> None:
        """Close the run. If the job's `state` is not final, a later process continues the run."""
