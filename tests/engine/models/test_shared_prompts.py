"""The packed forward with shared prompts equals the plain one: log-probabilities and gradients."""

from collections.abc import Callable

import pytest
import torch

from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import PackedBatch
from tests.engine.conftest import FAMILIES


def batch_of(*shapes: tuple[int, tuple[int, ...]]) -> PackedBatch:
    """Groups of random tokens: (prompt length, completion lengths)."""
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(6, 60, (count,), generator=generator).tolist())

    groups = [
        TrainingGroup(
            tokens(p), tuple(TrainingSequence(tokens(n), (0.0,) * n, (1.0,) * n, 1.0) for n in lengths)
        )
        for p, lengths in shapes
    ]
    return next(pack(groups, 10_000, torch.device("cpu")))


MIXED = ((9, (4, 1, 30)), (3, (2, 6)), (40, (5,)), (1, (1, 2, 3, 4)))


def both(policy: Policy, batch: PackedBatch) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """Log-probabilities and adapter gradients, packed then plain."""
    values, gradients = [], []
    for shared in (True, False):
        policy.shares_prompts = shared
        for parameter in policy.trainable.values():
            parameter.grad = None
        logprobs, _ = policy.logprobs(batch, temperature=0.7)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        values.append(logprobs.detach())
        gradients.append([p.grad.clone() for p in policy.trainable.values() if p.grad is not None])
    return values, gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_and_plain_agree_in_value_and_gradient(
    make_policy: Callable[..., Policy], family: str
) -> None:
    policy = make_policy(family)
    assert policy.shares_prompts
    (packed, plain), (packed_gradients, plain_gradients) = both(policy, batch_of(*MIXED))
    assert float((packed - plain).abs().max()) < 1e-5
    assert len(packed_gradients) == len(policy.trainable) > 0
    for left, right in zip(packed_gradients, plain_gradients, strict=True):
        # float32 sums of either way are about 5e-6 of the largest entry away from float64's
        assert float((left - right).abs().max()) < 2e-5 * float(right.abs().max())


def test_a_model_that_disagrees_when_packed_is_trained_the_plain_way(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy("qwen3")
    original = policy.model.base_model.forward
    policy.model.base_model.forward = lambda **kwargs: original(  # type: ignore[method-assign]
        **{**kwargs, "position_ids": None}
    )
    policy.prove_shared_prompts()
    assert not policy.shares_prompts


def test_the_reference_of_a_fresh_adapter_is_the_base_model(make_policy: Callable[..., Policy]) -> None:
    policy, base = make_policy("qwen3"), make_policy("qwen3", lora="full")
    batch = batch_of((5, (3, 4)))
    expected, _ = base.logprobs(batch)
    reference = policy.reference_logprobs(batch)
    assert torch.allclose(reference, expected.detach(), atol=1e-6)
    assert not reference.requires_grad
    trained, _ = policy.logprobs(batch)
    assert float((trained.detach() - reference).abs().max()) > 1e-3
