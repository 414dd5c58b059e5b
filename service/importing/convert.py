"""A configuration of TRL, Axolotl or verl → the body of a job, and a line of report for every field.

Boundary: pure; files are read by the command. The service's own classes decide whether it would accept the
job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError

from service.importing import axolotl, trl, verl
from service.importing.rules import JOB_FIELDS, Line, Options, Translation, translated
from service.jobs.model.schemas import JobCreate

Source = Literal["trl", "axolotl", "verl"]
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class Imported:
    """The job, and what became of each field."""

    source: Source
    job: dict[str, Any]
    lines: tuple[Line, ...]

    @property
    def is_whole(self) -> bool:
        """Nothing was refused and every field is known."""
        return not any(line.verdict in ("refused", "unknown") for line in self.lines)


def source_of(config: Mapping[str, Any]) -> Source:
    """The system whose configuration it looks like."""
    if any(str(name).partition(".")[0] in ("actor_rollout_ref", "algorithm") for name in config):
        return "verl"
    return "axolotl" if "rl" in config or "trl" in config or "base_model" in config else "trl"


def imported(config: Mapping[str, Any], options: Options, source: Source | None = None) -> Imported:
    """The configuration as a job."""
    source = source or source_of(config)
    translation = _translation(config, options, source)
    job = _job(translation)
    return Imported(source, job, (*translation.lines, *_what_the_service_refuses(job)))


def reward_names(config: Mapping[str, Any], source: Source | None = None) -> list[str]:
    """Reward functions that the configuration names, so that their sources can be looked for."""
    source = source or source_of(config)
    if source == "verl":
        return verl.reward_names(config)
    given = (
        axolotl.in_trl_terms(config).get("reward_funcs")
        if source == "axolotl"
        else config.get("reward_funcs")
    )
    return [given] if isinstance(given, str) else [str(name) for name in given or []]


def _translation(config: Mapping[str, Any], options: Options, source: Source) -> Translation:
    if source == "verl":
        return verl.translation(config, options)
    if source == "axolotl":
        return axolotl.translation(config, options)
    return translated(trl.RULES, config, options)


def _job(translation: Translation) -> dict[str, Any]:
    """Dotted targets → the body of a request."""
    job: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {"recipe": "grpo"}
    for target, value in translation.targets.items():
        if target == "grader":
            continue
        head, _, tail = target.partition(".")
        place = job if head in JOB_FIELDS else hyperparameters
        if tail:
            place.setdefault(head, {})[tail] = value
        else:
            place[head] = value
    method = {"grader": translation.targets.get("grader"), "hyperparameters": hyperparameters}
    return {**job, "method": {"type": "reinforcement", "reinforcement": method}}


def _what_the_service_refuses(job: dict[str, Any]) -> list[Line]:
    """Values that are out of range here; what is missing was said already."""
    missing = job["method"]["reinforcement"]["grader"] is None or not {"model", "training_file"} <= job.keys()
    if missing:
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
