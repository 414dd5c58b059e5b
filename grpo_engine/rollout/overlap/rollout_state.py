"""Converts graded groups to JSON and back, for checkpoints with sampled steps that are not trained yet.

Floats survive exactly, so a resumed run trains on the same rollouts as the interrupted one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_engine.contract.records import Record, Score
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.rollout.collector import StepGroups


class StoredGroup(Record):
    row: int
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...]


def groups_to_json(collected: StepGroups) -> dict[str, Any]:
    """JSON values; prompts are stored as row numbers."""

    def stored(groups: Sequence[GradedGroup]) -> list[dict[str, Any]]:
        return [
            StoredGroup(
                row=each.group.prompt.row, completions=each.group.completions, scores=each.scores
            ).model_dump(mode="json")
            for each in groups
        ]

    return {"groups": stored(collected.groups), "discarded": stored(collected.discarded)}


def groups_from_json(content: Mapping[str, Any], prompts: Sequence[Prompt]) -> StepGroups:
    """The inverse of `groups_to_json`."""
    by_row = {prompt.row: prompt for prompt in prompts}

    def restored(groups: Sequence[Mapping[str, Any]]) -> list[GradedGroup]:
        found = map(StoredGroup.model_validate, groups)
        return [GradedGroup(Group(by_row[each.row], each.completions), each.scores) for each in found]

    return StepGroups(restored(content["groups"]), restored(content["discarded"]))
