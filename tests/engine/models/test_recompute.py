"""Layers that are computed again in the backward pass: the same gradients from fewer kept activations."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from grpo_engine.models.policy import Policy
from grpo_engine.models.shared_prompt_attention import recompute
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack

CPU = torch.device("cpu")


def gradients(policy: Policy) -> tuple[list[torch.Tensor], int]:
    """Of the adapter for one packed group, and the elements that autograd kept."""
    ids = tuple(range(6, 26))
    sequences = [TrainingSequence(ids[:count], (0.0,) * count, (1.0,) * count, 1.0) for count in (20, 5)]
    batch = next(pack([TrainingGroup(ids[:7], tuple(sequences))], 1000, CPU))
    for parameter in policy.trainable.values():
        parameter.grad = None
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs, _ = policy.logprobs(batch)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return [p.grad.clone() for p in policy.trainable.values() if p.grad is not None], sum(kept)


def test_a_recomputed_layer_has_the_same_gradients_and_keeps_less(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    policy.fast = None  # our kernels have their own way
    expected, kept = gradients(policy)
    runs: Counter[int] = Counter()

    def count(module: Any, *_: Any) -> None:
        runs[module.layer_idx] += 1

    for layer in policy.model.base_model.layers:
        layer.self_attn.register_forward_hook(count)
        recompute(layer, policy.model)
    found, less = gradients(policy)
    assert runs == {0: 2, 1: 2}
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert less < kept / 3
