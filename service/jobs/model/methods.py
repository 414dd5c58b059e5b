"""The method of a job, parsed into the union of its types, and its parts: graders, tools, files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from grpo_engine.config.environments import Environment
from grpo_engine.config.hyperparameters import Lora, Quantization
from grpo_engine.config.job import (
    Method,
    Reinforcement,
    ReinforcementHyperparameters,
    ReinforcementMethod,
    RetentionSet,
    SupervisedMethod,
    TrainingFree,
    TrainingFreeHyperparameters,
    hyperparameters_of,
)
from grpo_engine.config.tools import Tool
from grpo_engine.config.training_free import TrainingFreeMethod
from grpo_engine.graders import Grader
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.graders.rules.process import Process
from service.jobs.model.schemas import JobCreate
from service.platform.errors import Conflict

Part = Literal["all", "training", "held_out"]
_method: TypeAdapter[Method] = TypeAdapter(Method)


class UnreadableMethod(Conflict):
    """A newer version has stored the job's method."""

    def __init__(self, reason: str) -> None:
        message = "This version of the service cannot read the job's method. Use the version that created it."
        super().__init__(message, code="method_unreadable")
        self.reason = reason
        """Invalid fields with their values, for the operator."""


@dataclass(frozen=True)
class DatasetUse:
    """A file that a job reads, and the grader of its rows."""

    param: str
    """The request's field that holds the file's id."""
    file_id: str
    grader: Grader | None
    """None if the rows are demonstrations."""
    grader_param: str
    part: Part = "all"
    """The part of the file whose rows are read, if `validation_split` divides it."""

    @property
    def name(self) -> str:
        """A name that distinguishes this use from the job's other uses."""
        return "validation_split" if self.part == "held_out" else self.param


def parsed_method(stored: Mapping[str, Any]) -> Method:
    """A job's stored method. Raises UnreadableMethod if a newer version wrote it."""
    try:
        return _method.validate_python(stored)
    except ValidationError as error:
        raise UnreadableMethod(str(error)) from error


def settings_of(method: Method) -> ReinforcementMethod | SupervisedMethod | TrainingFreeMethod:
    """The part of the method that is named after its type: grader, hyperparameters and the rest."""
    found: ReinforcementMethod | SupervisedMethod | TrainingFreeMethod = getattr(method, method.type)
    return found


def with_settings(method: Method, **changed: Any) -> Method:
    """The method with some of its settings replaced."""
    settings = settings_of(method).model_copy(update=changed)
    return method.model_copy(update={method.type: settings})


def grader_of(method: Method) -> Grader | None:
    """The grader; None for a supervised method."""
    settings = settings_of(method)
    return None if isinstance(settings, SupervisedMethod) else settings.grader


def eval_grader_of(method: Method) -> Grader | None:
    """The grader of held-out rows, if it is a different one."""
    settings = settings_of(method)
    return None if isinstance(settings, SupervisedMethod) else settings.eval_grader


def tools_of(method: Method) -> tuple[Tool, ...]:
    """The tools that the model may call."""
    return method.reinforcement.tools if isinstance(method, Reinforcement) else ()


def environments_of(method: Method) -> Mapping[str, Environment]:
    """The environments in which the model acts, by name."""
    return method.reinforcement.environments if isinstance(method, Reinforcement) else {}


def max_turns_of(method: Method) -> int | None:
    """Maximum turns of an episode in any of the method's environments; None without environments."""
    return max((each.max_turns for each in environments_of(method).values()), default=None)


def retention_of(method: Method) -> tuple[RetentionSet, ...]:
    """Held-out sets of other domains."""
    return method.reinforcement.retention if isinstance(method, Reinforcement) else ()


def sampling_of(method: Method) -> ReinforcementHyperparameters | TrainingFreeHyperparameters | None:
    """The hyperparameters of a method that samples completions; None: a supervised method."""
    settings = settings_of(method)
    return None if isinstance(settings, SupervisedMethod) else settings.hyperparameters


def lora_of(method: Method) -> Lora | Literal["full"] | None:
    """The adapter's shape, or "full"; None if it is unset or the method trains no weights."""
    return None if isinstance(method, TrainingFree) else hyperparameters_of(method).lora


def quantization_of(method: Method) -> Quantization | None:
    """How the base is quantised; None if it is not quantised, or the method trains no weights."""
    return None if isinstance(method, TrainingFree) else hyperparameters_of(method).quantization


def reads_rows(method: Method) -> bool:
    """Whether the job's own model reads the rows, or only a model behind an endpoint."""
    return not isinstance(method, TrainingFree) or method.training_free.hyperparameters.rollouts == "model"


def datasets_of(job: JobCreate) -> list[DatasetUse]:
    """The files of a job, the training file first."""
    method, where = job.method, f"method.{job.method.type}"
    grader, held_out = grader_of(method), eval_grader_of(method)
    named = f"{where}.eval_grader" if held_out else f"{where}.grader"
    is_split = job.validation_split is not None
    part: Part = "training" if is_split else "all"
    found = [DatasetUse("training_file", job.training_file, grader, f"{where}.grader", part)]
    if is_split:
        found.append(DatasetUse("training_file", job.training_file, held_out or grader, named, "held_out"))
    if job.validation_file is not None:
        found.append(DatasetUse("validation_file", job.validation_file, held_out or grader, named))
    for index, kept in enumerate(retention_of(method)):
        place = f"{where}.retention[{index}]"
        own = f"{place}.grader" if kept.grader else f"{where}.grader"
        found.append(DatasetUse(f"{place}.file", kept.file, kept.grader or grader, own))
    return found


def graders_of(method: Method) -> Iterator[tuple[str, Grader]]:
    """Every grader of a method with its place."""
    where = f"method.{method.type}"
    found = {"grader": grader_of(method), "eval_grader": eval_grader_of(method)}
    found |= {f"retention[{index}].grader": kept.grader for index, kept in enumerate(retention_of(method))}
    yield from ((f"{where}.{name}", grader) for name, grader in found.items() if grader is not None)


def leaves(where: str, grader: GraderBase) -> Iterator[tuple[str, Any]]:
    """The rules of a grader that contain no other rule, with their places."""
    if isinstance(grader, Multi):
        for key, part in grader.graders.items():
            yield from leaves(f"{where}.graders.{key}", part)
    elif isinstance(grader, Process):
        yield from leaves(f"{where}.grader", grader.grader)
    else:
        yield where, grader


def rules_of(method: Method) -> Iterator[tuple[str, Any]]:
    """The rules of all graders of a method that contain no other rule, with their places."""
    for where, grader in graders_of(method):
        yield from leaves(where, grader)
