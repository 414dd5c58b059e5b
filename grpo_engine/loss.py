"""The policy loss, token by token: pure functions of flat tensors [N].

A micro-batch's loss is `Σ weights · token_losses`. The weights come from `token_weights` for the whole
optimiser step before its first micro-batch, so that splitting, packing and ordering change nothing.

ρ = exp(lp − lp_old). Sources: GRPO DeepSeekMath (arXiv 2402.03300), Dr. GRPO (2503.20783), DAPO (2503.14476).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def surrogate(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None = None,
) -> Tensor:
    """−min(ρA, clip(ρ, 1−ε_low, 1+ε_high)·A) for each token [N]; `delta` bounds ρ from above first."""
    ratio = torch.exp(logprobs_N - old_logprobs_N)
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    if delta is not None:
        ratio = ratio.clamp(max=delta)
    return -torch.min(ratio * advantages_N, clipped * advantages_N)


def kl_k3(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """exp(lp_ref − lp) − (lp_ref − lp) − 1 for each token [N]: unbiased, never negative."""
    difference = reference_logprobs_N - logprobs_N
    return torch.exp(difference) - difference - 1


def token_losses(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    reference_logprobs_N: Tensor | None,
    *,
    beta: float,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None = None,
    kl_ratio_weight: bool = False,
) -> Tensor:
    """Clipped surrogate plus β·KL for each token [N].

    `kl_ratio_weight` multiplies the KL term by ρ, not detached: the unbiased gradient off-policy.
    """
    losses = surrogate(
        logprobs_N,
        old_logprobs_N,
        advantages_N,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=delta,
    )
    if reference_logprobs_N is None or beta == 0:
        return losses
    kl = kl_k3(logprobs_N, reference_logprobs_N)
    if kl_ratio_weight:
        kl = kl * torch.exp(logprobs_N - old_logprobs_N)
    return losses + beta * kl


def token_weights(loss_type: str, lengths: Sequence[int], max_completion_tokens: int) -> list[float]:
    """Weight of one token of each completion [completions of the whole optimiser step].

    `grpo`: mean over a completion's tokens, then over completions. `dapo`: over all tokens of the step.
    `dr_grpo`: over completions · max_completion_tokens. `lengths` counts trained tokens; 0 is allowed.
    """
    if loss_type == "grpo":
        return [1.0 / (max(1, length) * len(lengths)) for length in lengths]
    if loss_type == "dapo":
        return [1.0 / max(1, sum(lengths))] * len(lengths)
    if loss_type == "dr_grpo":
        return [1.0 / (len(lengths) * max_completion_tokens)] * len(lengths)
    raise ValueError(f"unknown loss_type {loss_type!r}")


def clip_counts(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, epsilon_low: float, epsilon_high: float
) -> tuple[float, float]:
    """Tokens whose ratio is clipped from below (A < 0) and from above (A > 0)."""
    ratio = torch.exp(logprobs_N - old_logprobs_N)
    low = (ratio < 1 - epsilon_low) & (advantages_N < 0)
    high = (ratio > 1 + epsilon_high) & (advantages_N > 0)
    return float(low.sum()), float(high.sum())
