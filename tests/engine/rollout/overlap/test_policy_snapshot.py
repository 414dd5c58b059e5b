"""The basis of sampling ahead: a policy that stays fixed, and groups that survive a checkpoint."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_engine.contract.records import GradeError, Score, StepScore
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import GradedGroup, Group, Prompt
from grpo_engine.rollout.collector import StepGroups
from grpo_engine.rollout.overlap.policy_snapshot import copied_policy
from grpo_engine.rollout.overlap.rollout_state import groups_from_json, groups_to_json
from tests.engine.rollout.overlap.test_one_step_ahead import completion


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
@pytest.mark.parametrize("lora", [{"rank": 4}, "full"])
def test_a_snapshot_stays_fixed_and_shares_frozen_weights(
    make_policy: Callable[..., Policy], family: str, lora: Any
) -> None:
    policy = make_policy(family, lora=lora)
    still = copied_policy(policy)
    own = dict(still.model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert own[name] is not parameter
        assert (own[name].data_ptr() == parameter.data_ptr()) is not parameter.requires_grad
        assert torch.equal(own[name], parameter)
    before = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    with torch.no_grad(), still.sampling():
        for parameter in still.trainable.values():
            parameter += 1
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_waiting_groups_survive_json() -> None:
    prompts = [Prompt(row, "", (1,), {}) for row in range(3)]
    called = completion(sampled=(True, False), turns=2, tool_calls=({"name": "f", "arguments": {"x": 1}},))
    scores = (
        Score(reward=1 / 3, parts={"a": 1 / 3}, steps=(StepScore(end=1, reward=0.5),), feedback="good"),
        Score(reward=None, errors={"a": GradeError(code="other_error", message="m")}),
    )
    graded = GradedGroup(Group(prompts[2], (completion(answer="b"), called)), scores)
    collected = StepGroups([graded], [replace(graded, group=replace(graded.group, prompt=prompts[0]))])
    stored = json.loads(json.dumps(groups_to_json(collected)))
    assert groups_from_json(stored, prompts) == collected
    for group in (*stored["groups"], *stored["discarded"]):
        for name in ("prompt", "text", "conversation"):
            del group[name]  # as checkpoints of earlier versions
    assert groups_from_json(stored, prompts) == collected


def test_waiting_groups_keep_the_prompt_that_an_environment_extended() -> None:
    said = {"messages": [{"role": "user", "content": "Play."}], "tools": None}
    row = Prompt(0, "Play.", (1,), {"environment": "game"}, conversation=said)
    shown = {**said, "messages": [{"role": "user", "content": "Play.\n\nYou see a door."}]}
    asked = replace(row, text="Play.\n\nYou see a door.", token_ids=(1, 2), conversation=shown)
    collected = StepGroups([GradedGroup(Group(asked, (completion(),)), (Score(reward=1.0),))], [])
    stored = json.loads(json.dumps(groups_to_json(collected)))
    assert groups_from_json(stored, [row]) == collected
