"""What stands inside a method, whatever its type, and where: graders, rules without rules in them, files.

Boundary: pure; finds parts and judges none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpo_engine.config.job import RetentionSet
from grpo_engine.graders import Grader
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.graders.rules.process import Process
from service.jobs.model.dataset import Kind
from service.jobs.model.schemas import JobCreate


@dataclass(frozen=True)
class DatasetUse:
    """A file that a job reads, and who grades its rows."""

    param: str
    """The field that names it."""
    file_id: str
    grader: Grader | None
    """None: nobody, it is learnt from."""
    grader_param: str = ""


def settings_of(method: Any) -> Any:
    """The part of the method that is named as its type: grader, hyperparameters and the rest."""
    return getattr(method, method.type)


def kind_of(method: Any) -> Kind:
    """How rows are used: the model answers them, or learns their last turn."""
    return "supervised" if method.type == "supervised" else "reinforcement"


def reads_rows(method: Any) -> bool:
    """Whether the job's own model reads the rows, and not only a model behind an endpoint."""
    return getattr(settings_of(method).hyperparameters, "rollouts", "model") == "model"


def retention_of(method: Any) -> tuple[RetentionSet, ...]:
    """Held-out sets of other domains, none where the method knows no such sets."""
    return tuple(getattr(settings_of(method), "retention", ()))


def datasets_of(job: JobCreate, method: Any) -> list[DatasetUse]:
    """The files of a job, the training file first."""
    settings, where = settings_of(method), f"method.{method.type}"
    grader = getattr(settings, "grader", None)
    held_out = getattr(settings, "eval_grader", None)
    found = [DatasetUse("training_file", job.training_file, grader, f"{where}.grader")]
    if job.validation_file is not None:
        named = "eval_grader" if held_out else "grader"
        use = DatasetUse("validation_file", job.validation_file, held_out or grader, f"{where}.{named}")
        found.append(use)
    for index, kept in enumerate(retention_of(method)):
        place = f"{where}.retention[{index}]"
        own = f"{place}.grader" if kept.grader else f"{where}.grader"
        found.append(DatasetUse(f"{place}.file", kept.file, kept.grader or grader, own))
    return found


def graders_of(method: Any) -> Iterator[tuple[str, Grader]]:
    """Every grader of a method with its place."""
    settings, where = settings_of(method), f"method.{method.type}"
    for name in ("grader", "eval_grader"):
        if (grader := getattr(settings, name, None)) is not None:
            yield f"{where}.{name}", grader
    for index, kept in enumerate(retention_of(method)):
        if kept.grader is not None:
            yield f"{where}.retention[{index}].grader", kept.grader


def leaves(where: str, grader: GraderBase) -> Iterator[tuple[str, Any]]:
    """The rules of a grader that hold no other rule, with their places."""
    if isinstance(grader, Multi):
        for key, part in grader.graders.items():
            yield from leaves(f"{where}.graders.{key}", part)
    elif isinstance(grader, Process):
        yield from leaves(f"{where}.grader", grader.grader)
    else:
        yield where, grader


def rules_of(method: Any) -> Iterator[tuple[str, Any]]:
    """`leaves` of every grader of a method."""
    for where, grader in graders_of(method):
        yield from leaves(where, grader)
