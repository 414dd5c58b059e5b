"""A configuration of TRL, Axolotl or verl → the body of a job, and a line of report for every field.

Boundary: pure; the command reads the files. The service's own classes decide whether it accepts the job.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from service.importing import axolotl, trl, verl
from service.importing.rules import JOB_FIELDS, Line, Options, Translation
from service.jobs.model.schemas import JobCreate

Source = Literal["trl", "axolotl", "verl"]
MODULES = {"trl": trl, "axolotl": axolotl, "verl": verl}


@dataclass(frozen=True)
class Imported:
    """The job, and the outcome for each field."""

    source: Source
    job: dict[str, Any]
    lines: tuple[Line, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no field was refused or unknown."""
        return not any(line.verdict in ("refused", "unknown") for line in self.lines)


def source_of(config: Mapping[str, Any]) -> Source:
    """The system whose configuration it looks like."""
    if any(str(name).partition(".")[0] in ("actor_rollout_ref", "algorithm") for name in config):
        return "verl"
    return "axolotl" if "rl" in config or "trl" in config or "base_model" in config else "trl"


def imported(config: Mapping[str, Any], options: Options, source: Source | None = None) -> Imported:
    """The configuration as a job."""
    source = source or source_of(config)
    translation = MODULES[source].translation(config, options)
    job = _job(translation)
    return Imported(source, job, (*translation.lines, *_refused_by_the_service(job)))


def reward_names(config: Mapping[str, Any], source: Source | None = None) -> list[str]:
    """Reward functions that the configuration names, whose source code is needed."""
    return MODULES[source or source_of(config)].reward_names(config)


def _job(translation: Translation) -> dict[str, Any]:
    """Dotted targets → the body of a request."""
    job: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {"recipe": "grpo"}
    targets = dict(translation.targets)
    method = {"grader": targets.pop("grader", None), "hyperparameters": hyperparameters}
    for target, value in targets.items():
        head, _, tail = target.partition(".")
        place = job if head in JOB_FIELDS else hyperparameters
        if tail:
            place.setdefault(head, {})[tail] = value
        else:
            place[head] = value
    return {**job, "method": {"type": "reinforcement", "reinforcement": method}}


def _refused_by_the_service(job: dict[str, Any]) -> list[Line]:
    """Values out of range; missing parts were reported already."""
    if job["method"]["reinforcement"]["grader"] is None or not {"model", "training_file"} <= job.keys():
        return []
    try:
        JobCreate.model_validate(job)
    except ValidationError as invalid:
        return [
            Line((_place(error["loc"]),), (error.get("input"),), "refused", why=error["msg"])
            for error in invalid.errors(include_url=False)
        ]
    return []


def _place(location: tuple[int | str, ...]) -> str:
    text = ".".join(str(part) for part in location)
    return text.rpartition("hyperparameters.")[2] or text
