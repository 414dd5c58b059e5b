"""What a job may say about sinks: OpenAI's `integrations`, and ours in the same shape.

Boundary: shapes; `worker/sinks/` writes to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Project = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^/\\#?%:\x00-\x1f]+$")]
"""W&B makes it a part of a URL."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")]
SinkType = Literal["wandb", "tensorboard", "mlflow"]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WandbSettings(_Given):
    """OpenAI's own fields."""

    project: Project
    entity: Project | None = None
    name: Name | None = None
    """Of the run; the job's id where none is given."""
    tags: list[Annotated[str, StringConstraints(min_length=1, max_length=64)]] | None = Field(
        None, max_length=32
    )


class MlflowSettings(_Given):
    experiment: Name


class Wandb(_Given):
    type: Literal["wandb"]
    wandb: WandbSettings


class Tensorboard(_Given):
    type: Literal["tensorboard"]


class Mlflow(_Given):
    type: Literal["mlflow"]
    mlflow: MlflowSettings | None = None


Integration = Annotated[Wandb | Tensorboard | Mlflow, Field(discriminator="type")]


def as_documents(*groups: Iterable[Wandb | Tensorboard | Mlflow]) -> list[dict[str, Any]]:
    """As a job's row has them; of several of one type the first counts."""
    found: dict[str, dict[str, Any]] = {}
    for one in (one for group in groups for one in group):
        found.setdefault(one.type, one.model_dump(mode="json", exclude_none=True))
    return list(found.values())
