"""Converts graded groups to JSON and back, for checkpoints with sampled steps that are not trained yet.

Floats survive exactly, so a resumed run trains on the same rollouts as the interrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.rollout.collector import StepGroups


def groups_to_json(collected: StepGroups) -> dict[str, Any]:
    """JSON values; prompts are stored as row numbers."""
    return {
        "groups": [_group_to_json(each) for each in collected.groups],
        "discarded": [_group_to_json(each) for each in collected.discarded],
    }


def groups_from_json(content: Mapping[str, Any], prompts: Sequence[Prompt]) -> StepGroups:
    """The inverse of `groups_to_json`."""
    by_row = {prompt.row: prompt for prompt in prompts}
    return StepGroups(
        [_group_from_json(each, by_row) for each in content["groups"]],
        [_group_from_json(each, by_row) for each in content["discarded"]],
    )


def _group_to_json(graded: GradedGroup) -> dict[str, Any]:
    completions = graded.group.completions
    return {
        "row": graded.group.prompt.row,
        "completions": [{name: getattr(each, name) for name in Completion.__slots__} for each in completions],
        "scores": [score.model_dump(mode="json") for score in graded.scores],
    }


def _group_from_json(content: Mapping[str, Any], by_row: Mapping[int, Prompt]) -> GradedGroup:
    completions = tuple(_completion(each) for each in content["completions"])
    scores = tuple(Score.model_validate(each) for each in content["scores"])
    return GradedGroup(Group(by_row[content["row"]], completions), scores)


def _completion(content: Mapping[str, Any]) -> Completion:
    sequences = {name: tuple(content[name]) for name in ("token_ids", "logprobs", "sampled", "tool_calls")}
    finish_reason = FinishReason(content["finish_reason"])
    return Completion(**{**content, **sequences, "finish_reason": finish_reason})
