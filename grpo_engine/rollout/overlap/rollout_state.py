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
    prompt: tuple[int, ...] = ()
    """The prompt's tokens, which an environment or an agent may have changed; empty: those of the row."""
    text: str = ""
    """The prompt's text, which an environment may have extended; empty: that of the row."""
    conversation: Mapping[str, Any] = {}
    """The prompt's conversation, as `text`."""
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...]


def groups_to_json(collected: StepGroups) -> dict[str, Any]:
    """JSON values; of a prompt, its row and what a rollout may have changed."""

    def stored(groups: Sequence[GradedGroup]) -> list[dict[str, Any]]:
        return [
            StoredGroup(
                row=each.group.prompt.row,
                prompt=each.group.prompt.token_ids,
                text=each.group.prompt.text,
                conversation=each.group.prompt.conversation,
                completions=each.group.completions,
                scores=each.scores,
            ).model_dump(mode="json")
            for each in groups
        ]

    return {"groups": stored(collected.groups), "discarded": stored(collected.discarded)}


def groups_from_json(content: Mapping[str, Any], prompts: Sequence[Prompt]) -> StepGroups:
    """The inverse of `groups_to_json`."""
    by_row = {prompt.row: prompt for prompt in prompts}

    def restored(content: Mapping[str, Any]) -> GradedGroup:
        stored = StoredGroup.model_validate(content)
        row = by_row[stored.row]
        prompt = replace(
            row,
            token_ids=stored.prompt or row.token_ids,
            text=stored.text or row.text,
            conversation=stored.conversation or row.conversation,
        )
        return GradedGroup(Group(prompt, stored.completions), stored.scores)

    return StepGroups(*([restored(each) for each in content[name]] for name in ("groups", "discarded")))
