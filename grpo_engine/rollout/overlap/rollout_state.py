"""Converts graded groups to JSON and back, for checkpoints with sampled steps that are not trained yet.

Floats survive exactly, so a resumed run trains on the same rollouts as the interrupted one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_engine.contract.records import Record, Score
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.rollout.collector import StepGroups


class StoredGroup(Record):
    row: int
    prompt: tuple[int, ...]
    """The prompt's tokens; an environment or an agent may have changed those of the row."""
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...]


def groups_to_json(collected: StepGroups) -> dict[str, Any]:
    """JSON values; of a prompt, its row and its tokens."""

    def stored(groups: Sequence[GradedGroup]) -> list[dict[str, Any]]:
        return [
            StoredGroup(
                row=each.group.prompt.row,
                prompt=each.group.prompt.token_ids,
                completions=each.group.completions,
                scores=each.scores,
            ).model_dump(mode="json")
            for each in groups
        ]

    return {"groups": stored(collected.groups), "discarded": stored(collected.discarded)}


def groups_from_json(content: Mapping[str, Any], prompts: Sequence[Prompt]) -> StepGroups:
    """The inverse of `groups_to_json`."""
    by_row = {prompt.row: prompt for prompt in prompts}

    def restored(groups: Sequence[Mapping[str, Any]]) -> list[GradedGroup]:
        found = [StoredGroup.model_validate(each) for each in groups]
        asked = [replace(by_row[each.row], token_ids=each.prompt) for each in found]
        return [
            GradedGroup(Group(prompt, each.completions), each.scores)
            for prompt, each in zip(asked, found, strict=True)
        ]

    return StepGroups(restored(content["groups"]), restored(content["discarded"]))
