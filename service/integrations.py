"""A job's `integrations`: OpenAI's Weights & Biases, and further sinks in the same form.

Boundary: schemas; `worker/sinks/` writes to the sinks.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from grpo_engine.config.recipes import problem_at
from grpo_engine.contract.described import Described

Project = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^/\\#?%:\x00-\x1f]+$")]
"""W&B uses it in a URL."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")]


class _Given(Described):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WandbSettings(_Given):
    """The fields of OpenAI's API."""

    project: Project
    """W&B project of the run."""
    entity: Project | None = None
    """W&B team or user; default: the one of the operator's key."""
    name: Name | None = None
    """Name of the run; default: the job's id."""
    tags: list[Annotated[str, StringConstraints(min_length=1, max_length=64)]] | None = Field(
        None, max_length=32
    )
    """Tags of the run."""


class MlflowSettings(_Given):
    experiment: Name
    """MLflow experiment of the run."""


class Wandb(_Given):
    type: Literal["wandb"]
    wandb: WandbSettings
    """Settings of the W&B run."""


class Tensorboard(_Given):
    type: Literal["tensorboard"]


class Mlflow(_Given):
    type: Literal["mlflow"]
    mlflow: MlflowSettings | None = None
    """Settings of the MLflow run; null: the experiment `grpo`."""


Integration = Annotated[Wandb | Tensorboard | Mlflow, Field(discriminator="type")]


def _one_of_each_type(integrations: list[Integration]) -> list[Integration]:
    types = [one.type for one in integrations]
    for index, each in enumerate(types):
        if each in types[:index]:
            raise problem_at(f"give only one sink of the type {each}", index, "type")
    return integrations


Integrations = Annotated[list[Integration], Field(max_length=8), AfterValidator(_one_of_each_type)]
"""The sinks of one job."""


def as_documents(*groups: Iterable[Wandb | Tensorboard | Mlflow]) -> list[dict[str, Any]]:
    """The integrations as a job's row stores them, with only the first one of each type."""
    found: dict[str, dict[str, Any]] = {}
    for one in chain(*groups):
        found.setdefault(one.type, one.model_dump(mode="json", exclude_none=True))
    return list(found.values())
