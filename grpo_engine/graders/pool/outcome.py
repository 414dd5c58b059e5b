"""A score in every case: of a rule that answers, of one that raises, and of one that cannot answer.

Boundary: what happened around a rule never becomes a reward. Exceptions and dead processes are unscorable.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_engine.contract.records import Sample, Score
from grpo_engine.graders.base import GraderBase


def grade_safely(grader: GraderBase, sample: Sample, item: Mapping[str, Any]) -> Score:
    """The rule's score. A rule that raises says nothing of the completion: unscorable, with the place."""
    try:
        return grader.grade(sample, item)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other completions are graded
        return grader.unscorable("other_error", f"the rule failed: {_place(error)}")


def late(grader: GraderBase, seconds: float) -> Score:
    """Score of a completion whose rule did not answer in time."""
    return grader.unscorable("unresponsive_reward_error", f"no answer within {seconds:g} seconds")


def _place(error: Exception) -> str:
    """Kind and line, without the text: that may hold anything."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"
