"""Log-probability and entropy of chosen tokens without a [T, V] tensor of logits.

Hidden states go through the output layer in chunks that are computed again in the backward pass, so peak
memory does not grow with the number of tokens times the vocabulary. Sums are in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**24
"""Logits of one chunk: 64 MiB in float32."""

LogitsOf = Callable[[Tensor], Tensor]
"""Hidden states [n, H] → logits [n, V]."""


def token_logprobs(
    hidden_N: Tensor,
    targets_N: Tensor,
    logits_of: LogitsOf,
    *,
    temperature: float,
    vocab_size: int,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Hidden states [N, H] and token ids [N] → log-probabilities [N] and entropies [N], float32.

    The entropy carries a gradient only where it is asked for.
    """
    chunk = max(1, CHUNK_ELEMENTS // vocab_size)
    logprobs, entropies = [], []
    for start in range(0, len(targets_N), chunk):
        arguments = (
            hidden_N[start : start + chunk],
            targets_N[start : start + chunk],
            logits_of,
            temperature,
            entropy_gradient,
        )
        if torch.is_grad_enabled() and len(targets_N) > chunk:
            out = checkpoint(_chunk_logprobs, *arguments, use_reentrant=False)
        else:
            out = _chunk_logprobs(*arguments)
        logprobs.append(out[0])
        entropies.append(out[1])
    if not logprobs:
        return hidden_N.new_zeros(0, dtype=torch.float32), hidden_N.new_zeros(0, dtype=torch.float32)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk_logprobs(
    hidden: Tensor, targets: Tensor, logits_of: LogitsOf, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    log_all = every_logprob(hidden, logits_of, temperature)
    chosen = log_all.gather(1, targets[:, None]).squeeze(1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        entropy = -(log_all.exp() * log_all).nan_to_num(0.0).sum(-1)
    return chosen, entropy


def every_logprob(hidden: Tensor, logits_of: LogitsOf, temperature: float) -> Tensor:
    """Log-probabilities [n, V] in float32. The temperature divides the logits here and nowhere else."""
    return (logits_of(hidden).float() / temperature).log_softmax(-1)
