"""The policy loss, token by token: pure functions of flat tensors [N].

A micro-batch holds whole completions; `sequences_N` maps each token to its completion. Its loss is
`Σ weights · policy + Σ kl_weights · β · KL − entropy bonus`. All weights are computed for the whole
optimiser step before its first micro-batch, so splitting, packing and ordering do not change the result.

ρ = exp(lp − lp_old). Sources: GRPO DeepSeekMath (arXiv 2402.03300), Dr. GRPO (2503.20783), DAPO (2503.14476),
GSPO (2507.18071), CISPO MiniMax-M1 (2506.13585), SAPO (2511.20347); BNPO as TRL 1.16 defines it.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from grpo_engine.config.reinforcement import ReinforcementHyperparameters as Settings


def clipped(ratio_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, settings: Settings) -> Tensor:
    """−min(ρA, clip(ρ, 1−ε_low, 1+ε_high)·A); `delta` bounds ρ from above first."""
    bounded = ratio_N.clamp(1 - settings.epsilon_low, 1 + settings.epsilon_high)
    if settings.delta is not None:
        ratio_N = ratio_N.clamp(max=settings.delta)
    return -torch.min(ratio_N * advantages_N, bounded * advantages_N)


def cispo(ratio_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, settings: Settings) -> Tensor:
    """−stop_grad(min(ρ, ε_high))·A·lp: a token with a clipped ratio keeps a gradient."""
    return -ratio_N.clamp(max=settings.epsilon_high).detach() * advantages_N * logprobs_N


def sapo(ratio_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, settings: Settings) -> Tensor:
    """−(4/τ)·sigmoid(τ(ρ−1))·A, τ by the sign of A: a soft gate in place of the clip."""
    temperature = torch.where(
        advantages_N > 0, settings.sapo_temperature_positive, settings.sapo_temperature_negative
    )
    return -torch.sigmoid(temperature * (ratio_N - 1)) * 4 / temperature * advantages_N


def reinforce(ratio_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor, settings: Settings) -> Tensor:
    """−A·lp."""
    return -advantages_N * logprobs_N


PolicyLoss = Callable[[Tensor, Tensor, Tensor, Settings], Tensor]

LOSSES: Mapping[str, PolicyLoss] = {
    **dict.fromkeys(("grpo", "dapo", "dr_grpo", "bnpo", "gspo"), clipped),
    "cispo": cispo,
    "sapo": sapo,
    "reinforce": reinforce,
}


def ratios(logprobs_N: Tensor, old_N: Tensor, sequences_N: Tensor, loss_type: str) -> Tensor:
    """[N] ρ of each token; for `gspo` that of its sequence, exp(mean_t(lp − lp_old))."""
    difference = logprobs_N - old_N
    if loss_type == "gspo":
        difference = sequence_means(difference, sequences_N)[sequences_N]
    return torch.exp(difference)


def sequence_sums(values_N: Tensor, sequences_N: Tensor) -> Tensor:
    """Sum over each sequence's tokens [N], followed by zeros.

    There are at most N sequences. Reading their number from the device would mean waiting for it.
    """
    return torch.zeros_like(values_N).index_add(0, sequences_N, values_N)


def sequence_means(values_N: Tensor, sequences_N: Tensor) -> Tensor:
    """Mean over each sequence's tokens [N], as `sequence_sums`."""
    lengths = sequence_sums(torch.ones_like(values_N), sequences_N)
    return sequence_sums(values_N, sequences_N) / lengths.clamp(min=1)


def policy_losses(
    logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, sequences_N: Tensor, settings: Settings
) -> Tensor:
    """The policy term of each token [N], without its weight."""
    ratio_N = ratios(logprobs_N, old_N, sequences_N, settings.loss_type)
    return LOSSES[settings.loss_type](ratio_N, advantages_N, logprobs_N, settings)


def kl_estimate(logprobs_N: Tensor, reference_N: Tensor, estimator: str = "k3") -> Tensor:
    """KL(π ‖ reference) estimated at each sampled token [N], in nats.

    k1 = lp − lp_ref: unbiased as a value, but without a useful gradient inside a loss. k2 = ½(lp − lp_ref)².
    k3 = exp(lp_ref − lp) − (lp_ref − lp) − 1: unbiased and never negative (DeepSeekMath eq. 4).
    """
    difference = reference_N - logprobs_N
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference.square()
    if estimator == "k3":
        return torch.exp(difference) - difference - 1
    raise ValueError(f"unknown kl_estimator {estimator!r}")


def kl_losses(
    logprobs_N: Tensor, old_N: Tensor, reference_N: Tensor, sequences_N: Tensor, settings: Settings
) -> Tensor:
    """KL of each token [N], without β and its weight.

    `kl_ratio_weight` multiplies it by ρ, not detached: the unbiased gradient off-policy.
    """
    kl_N = kl_estimate(logprobs_N, reference_N, settings.kl_estimator)
    if settings.kl_ratio_weight:
        kl_N = kl_N * ratios(logprobs_N, old_N, sequences_N, settings.loss_type)
    return kl_N


LEAST_SHARE = 0.1
"""Least share of β that one step keeps: a β of 0 could never rise again."""


def adapted_beta(beta: float, kl: float, target: float, horizon: int, completions: int) -> float:
    """β · (1 + clip(kl/target − 1, ±0.2) · completions/horizon), as in Ziegler et al. (arXiv 1909.08593).

    KL above the target raises β. `kl` and `target` in nats per token.
    """
    error = min(0.2, max(-0.2, kl / target - 1))
    return beta * max(LEAST_SHARE, 1 + error * completions / horizon)


def importance_weights(
    logprobs_N: Tensor, sampled_N: Tensor, sequences_N: Tensor, correction: str, cap: float
) -> Tensor:
    """π_train/π_sampler of each token [N], for a sampler whose numerics differ from the trainer's.

    `token_…`: each token's own ratio; `sequence_…`: the product over the completion. `…_truncate` takes `cap`
    for a larger ratio, `…_mask` takes 0. No gradient. Source: truncated importance sampling.
    """
    difference = (logprobs_N - sampled_N).detach()
    if correction.startswith("sequence"):
        difference = sequence_sums(difference, sequences_N)[sequences_N]
    ratio = torch.exp(difference)
    if correction.endswith("truncate"):
        return ratio.clamp(max=cap)
    return ratio.masked_fill(ratio > cap, 0.0)


def token_weights(loss_type: str, lengths: Sequence[int], max_completion_tokens: int) -> list[float]:
    """Weight of one token of each completion [completions of the whole optimiser step].

    `grpo`, `gspo`, `sapo`: mean over a completion's tokens, then over completions. `dapo`, `bnpo`, `cispo`,
    `reinforce`: over all trained tokens of the step. `dr_grpo`: over completions · max_completion_tokens.
    `lengths` counts trained tokens; 0 is allowed.
    """
    if loss_type in ("grpo", "gspo", "sapo"):
        return [1.0 / (max(1, length) * len(lengths)) for length in lengths]
    if loss_type in ("dapo", "bnpo", "cispo", "reinforce"):
        return [1.0 / max(1, sum(lengths))] * len(lengths)
    if loss_type == "dr_grpo":
        return [1.0 / (len(lengths) * max_completion_tokens)] * len(lengths)
    raise ValueError(f"unknown loss_type {loss_type!r}")


def clip_counts(ratio_N: Tensor, advantages_N: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """Tokens whose ratio is clipped from below (A < 0) and from above (A > 0)."""
    none = ratio_N.new_zeros(())
    if settings.loss_type in ("sapo", "reinforce"):
        return none, none
    if settings.loss_type == "cispo":
        return none, ((ratio_N > settings.epsilon_high) & (advantages_N > 0)).sum()
    low = (ratio_N < 1 - settings.epsilon_low) & (advantages_N < 0)
    high = (ratio_N > 1 + settings.epsilon_high) & (advantages_N > 0)
    return low.sum(), high.sum()
