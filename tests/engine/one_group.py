"""A step of one group of two completions, and the gradients of a loss term."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import pack, training_groups
from grpo_engine.objective.types import Completion, Group, PackedBatch, Prompt, ScoredGroup
from grpo_engine.training.gradients import PolicyGradient
from tests.engine.injection import CPU

PROMPT = (7, 8, 9)
FIRST, SECOND = (11, 12, 13, 14), (21, 22)


def settings(**fields: Any) -> ReinforcementHyperparameters:
    return ReinforcementHyperparameters.model_validate({"beta": 0.0, "max_completion_tokens": 8, **fields})


def completion(token_ids: tuple[int, ...], **fields: Any) -> Completion:
    shape = {"logprobs": (-1.0,) * len(token_ids), "finish_reason": FinishReason.STOP, **fields}
    return Completion("", token_ids, policy_version=0, **shape)


def scored(completions: Sequence[Completion], advantages: tuple[float, ...] = (1.0, -0.5)) -> ScoredGroup:
    group = Group(Prompt(0, "", PROMPT, {}), tuple(completions))
    return ScoredGroup(group, (Score(reward=0.0),) * len(completions), advantages, has_signal=True)


TWO = (completion(FIRST), completion(SECOND))


def term(
    policy: Policy, group: ScoredGroup, *, correction: str = "none", **fields: Any
) -> tuple[PolicyGradient, PackedBatch]:
    """A loss term for a step of one group, and the step as one micro-batch."""
    options = settings(**fields)
    groups = training_groups([group], options)
    made = PolicyGradient(policy, options, groups, beta=options.beta, correction=correction)
    return made, next(pack(groups, 1000, CPU))


def gradients_of(policy: Policy, run: Callable[[], object]) -> list[Tensor]:
    """Gradients of the parameters after `run`."""
    for parameter in policy.trainable.values():
        parameter.grad = None
    run()
    return [p.grad.clone() for p in policy.trainable.values() if p.grad is not None]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    pairs = list(zip(left, right, strict=True))
    return bool(pairs) and all(torch.allclose(a, b, atol=1e-7, rtol=1e-5) for a, b in pairs)
