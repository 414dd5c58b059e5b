"""Reward rules: one file per kind, one union for the configuration.

`Grader` is a field type: `grader: Grader` in a pydantic model reads any kind by its `type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from grpo_engine.contract.records import Sample, Score
from grpo_engine.graders.rules.multi import Multi, SingleGrader
from grpo_engine.graders.samples import make_sample

Grader = Annotated[SingleGrader | Multi, Field(discriminator="type")]

__all__ = ["Grader", "grade", "make_sample", "part_names"]


def grade(grader: SingleGrader | Multi, sample: Sample, item: Mapping[str, Any]) -> Score:
    """Score of one completion; `item` is its dataset row without `messages` and `tools`.

    Never raises for what the sample or the row holds: such a score has reward None and says why.
    """
    return grader.grade(sample, item)


def part_names(grader: SingleGrader | Multi) -> list[str]:
    """Keys of every Score's `parts`, in order: names for metrics."""
    return list(grader.graders) if isinstance(grader, Multi) else [grader.label]
