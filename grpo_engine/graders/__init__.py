"""Reward rules: one file per kind, one union for the configuration.

`Grader` is a field type: `grader: Grader` in a pydantic model reads any kind by its `type`.
"""

from typing import Annotated

from pydantic import Field

from grpo_engine.graders.rules.multi import Multi, SingleGrader
from grpo_engine.graders.samples import make_sample

Grader = Annotated[SingleGrader | Multi, Field(discriminator="type")]

__all__ = ["Grader", "make_sample", "part_names"]


def part_names(grader: SingleGrader | Multi) -> list[str]:
    """Keys of every Score's `parts`, in order: names for metrics."""
    return list(grader.graders) if isinstance(grader, Multi) else [grader.label]
