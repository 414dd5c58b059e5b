"""A job's configuration tree, shared by the service and the engine.

The service validates a job with these classes and the engine runs with them, so an accepted job cannot fail
on a typo. Recipes and other systems' names are expanded into a visible full configuration; validating it
again changes nothing.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, overload

from pydantic import ConfigDict, Field, model_validator

from grpo_engine.config.environments import Environment, EnvironmentName, refuse_environment_reward
from grpo_engine.config.hyperparameters import Hyperparameters, SupervisedHyperparameters
from grpo_engine.config.recipes import problem_at
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.config.runtime import Runtime
from grpo_engine.config.tools import Tool
from grpo_engine.config.training_free import TrainingFree, TrainingFreeHyperparameters
from grpo_engine.config.validation_split import ValidationSplit
from grpo_engine.contract.events import VALIDATION
from grpo_engine.contract.records import Input, Listed, Record, filled_in
from grpo_engine.graders import Grader


class RetentionSet(Input):
    """Held-out rows of another domain, to check that training does not unlearn it."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of the set in metrics and rollouts."""
    file: str
    """Id of the uploaded file with its rows."""
    grader: Grader | None = None
    """Grader of these rows; null: the job's own."""


class ReinforcementMethod(Input):
    model_config = ConfigDict(json_schema_extra=filled_in("grader"))

    grader: Grader
    """The reward rule. A job with environments may leave it out: the environment's reward then counts."""
    response_format: dict[str, Any] | None = None
    """JSON schema for completions; a completion that is not JSON has no `sample.output_json`."""
    eval_grader: Grader | None = None
    """Grader of the validation rows; null: the training grader. A different one reveals reward hacking."""
    retention: Listed[RetentionSet] = Field((), max_length=8)
    """Held-out sets of other domains, evaluated to detect what training unlearns."""
    tools: Listed[Tool] = Field((), max_length=32)
    """Tools that the model may call in its completions."""
    environments: dict[EnvironmentName, Environment] = Field({}, max_length=16)
    """Environments by name; each row has the name of its own in the field `environment`."""
    hyperparameters: ReinforcementHyperparameters = Field(
        default_factory=lambda: ReinforcementHyperparameters.model_validate({})
    )
    """Options of the training; the defaults are those of GRPO."""

    @model_validator(mode="before")
    @classmethod
    def _gdpo(cls, data: Any) -> Any:
        """A `multi` grader with `aggregation: gdpo` sets `advantage: gdpo`."""
        grader = data.get("grader") if isinstance(data, dict) else None
        if isinstance(grader, dict) and grader.get("aggregation") == "gdpo":
            hyperparameters = data.get("hyperparameters") or {}
            if isinstance(hyperparameters, dict):
                data = {**data, "hyperparameters": {"advantage": "gdpo", **hyperparameters}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _environments_grade(cls, data: Any) -> Any:
        """With environments, `grader` is `environment` unless it is given."""
        if isinstance(data, dict) and data.get("environments") and data.get("grader") is None:
            return {**data, "grader": {"type": "environment"}}
        return data

    @model_validator(mode="after")
    def _environments_fit(self) -> Self:
        if self.environments:
            has_agent = any(each.type == "agent" for each in self.environments.values())
            if has_agent and self.tools:
                advice = "let the agent call its own, or train on the agent in a job without tools"
                raise problem_at(f"an agent cannot use the job's tools: {advice}", "tools")
            if has_agent and self.hyperparameters.self_distillation is not None:
                message = "an agent writes its own prompts, to which no feedback can be added: set it to null"
                raise problem_at(message, "hyperparameters", "self_distillation")
            return self
        refuse_environment_reward(self.grader, "grader")
        refuse_environment_reward(self.eval_grader, "eval_grader")
        for index, kept in enumerate(self.retention):
            refuse_environment_reward(kept.grader, "retention", index, "grader")
        return self

    @model_validator(mode="after")
    def _advantage_fits(self) -> Self:
        advantage, kind = self.hyperparameters.advantage, self.grader.type
        place = ("hyperparameters", "advantage")
        if advantage == "gdpo" and kind != "multi":
            message = "advantage gdpo standardises each part of a multi grader: give a multi grader"
            raise problem_at(message, *place)
        if getattr(self.grader, "aggregation", "formula") == "gdpo" and advantage != "gdpo":
            raise problem_at("the grader's aggregation gdpo needs advantage gdpo", *place)
        if advantage == "process" and kind != "process":
            message = "advantage process needs rewards per step: give a process grader"
            raise problem_at(message, *place)
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if (index := _repeated([getattr(tool, "name", None) for tool in self.tools])) is not None:
            raise problem_at("tools need different names", "tools", index, "name")
        names = [kept.name for kept in self.retention]
        if VALIDATION in names:
            message = "a retention set cannot be named validation: the job's own evaluation has that name"
            raise problem_at(message, "retention", names.index(VALIDATION), "name")
        if (index := _repeated(names)) is not None:
            raise problem_at("retention sets need different names", "retention", index, "name")
        return self


def _repeated(names: Sequence[str | None]) -> int | None:
    """Index of the first repeated name; entries that are None or empty do not count."""
    return next((index for index, name in enumerate(names) if name and name in names[:index]), None)


class SupervisedMethod(Input):
    hyperparameters: SupervisedHyperparameters = Field(
        default_factory=lambda: SupervisedHyperparameters.model_validate({})
    )
    """Options of the training."""


class Reinforcement(Input):
    type: Literal["reinforcement"]
    reinforcement: ReinforcementMethod
    """The grader and the options of reinforcement training."""


class Supervised(Input):
    type: Literal["supervised"]
    supervised: SupervisedMethod = Field(default_factory=SupervisedMethod)
    """The options of supervised training on the last assistant turn."""


Method = Annotated[Reinforcement | Supervised | TrainingFree, Field(discriminator="type")]


@overload
def hyperparameters_of(method: Reinforcement | Supervised) -> Hyperparameters: ...
@overload
def hyperparameters_of(method: TrainingFree) -> TrainingFreeHyperparameters: ...
@overload
def hyperparameters_of(method: Method) -> Hyperparameters | TrainingFreeHyperparameters: ...
def hyperparameters_of(method: Method) -> Hyperparameters | TrainingFreeHyperparameters:
    """The method's hyperparameters, whatever its type."""
    if isinstance(method, Reinforcement):
        return method.reinforcement.hyperparameters
    if isinstance(method, TrainingFree):
        return method.training_free.hyperparameters
    return method.supervised.hyperparameters


class ModelSource(Record):
    """Where the weights come from: an entry of the catalogue, never a path from a user."""

    name: str
    """Name of the base model, which the trained adapter's configuration repeats."""
    path: str
    """A folder with safetensors, or a hub id."""
    revision: str | None = None
    adapter: str | None = None
    """Folder of an earlier job's PEFT adapter to continue from; it is also the reference."""


class ProbeSize(Input):
    """A run that samples and scores like the job's training, without training."""

    prompts: int = Field(16, ge=1, le=256)
    """Number of prompts of the training file, each answered `group_size` times; at most the whole file."""


class RunConfig(Record):
    """`config.json`: everything that an engine run depends on."""

    format: Literal[1] = 1
    job_id: str
    seed: int = Field(0, ge=0, lt=2**63)
    model: ModelSource
    training_file: str
    """JSONL on the engine's disk."""
    validation_file: str | None = None
    validation_split: ValidationSplit | None = None
    """Rows of training_file to hold out if validation_file is unset; a row keeps its number in the file."""
    retention_files: dict[str, str] = {}
    """Retention set → JSONL on the engine's disk."""
    method: Method
    probe: ProbeSize | None = None
    """Size of the probe; None: the job trains."""
    export: Literal["merged"] | None = None
    """Save base and adapter as one model instead of training; training_file is not read."""
    held_out_completions: dict[int, tuple[int, ...]] = {}
    """For an export: row of validation_file → token ids of its completion in the job's last evaluation."""
    runtime: Runtime = Field(default_factory=Runtime)
    created_at: float = 0.0
    """Unix seconds of the job's creation. Chat templates get this date, so it does not change at midnight."""
    first_sequence: int = Field(1, ge=1)
    """Number of the run's first event, if the run directory holds none yet."""
    published_step: int = Field(0, ge=0)
    """Steps up to this one are already published; a resumed run repeats them silently."""
