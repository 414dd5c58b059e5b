"""KL divergence of whole distributions from hidden states, without a [N, V] tensor of logits.

As in `logprobs.py`: chunks that are computed again in the backward pass, sums in float32.
Boundary: pure functions of tensors; which tokens and which teacher is `self_distillation.py`'s to say.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_engine.models.logprobs import CHUNK_ELEMENTS, LogitsOf, every_logprob


def kl_to_teacher(
    pupil_N: Tensor,
    teacher_N: Tensor,
    logits_of: LogitsOf,
    *,
    temperature: float,
    vocab_size: int,
    top_k: int | None = None,
) -> Tensor:
    """KL(pupil ‖ teacher) of each token [N], float32, from hidden states [N, H] of both; the teacher's have
    no gradient.

    `Σ_v p_v (log p_v − log q_v)` over the vocabulary, p the pupil's distribution and q the teacher's (SDPO,
    arXiv 2601.20802). With `top_k` over the teacher's k likeliest tokens and one more outcome, all the rest;
    that is never more than the whole KL.
    """
    chunk = max(1, CHUNK_ELEMENTS // vocab_size)
    bucketed = top_k if top_k is not None and top_k < vocab_size else None
    found = []
    for start in range(0, len(pupil_N), chunk):
        rows = slice(start, start + chunk)
        arguments = (pupil_N[rows], teacher_N[rows].detach(), logits_of, temperature, bucketed)
        if torch.is_grad_enabled() and len(pupil_N) > chunk:
            found.append(checkpoint(_chunk_kl, *arguments, use_reentrant=False))
        else:
            found.append(_chunk_kl(*arguments))
    return torch.cat(found) if found else pupil_N.new_zeros(0, dtype=torch.float32)


def _chunk_kl(
    pupil: Tensor, teacher: Tensor, logits_of: LogitsOf, temperature: float, top_k: int | None
) -> Tensor:
    log_p = every_logprob(pupil, logits_of, temperature)
    with torch.no_grad():  # the output layer is the teacher's too
        log_q = every_logprob(teacher, logits_of, temperature)
    if top_k is not None:
        likeliest = log_q.topk(top_k).indices
        log_p, log_q = _with_rest(log_p, likeliest), _with_rest(log_q, likeliest)
    # Of p · log p only p needs its gradient: that of log p sums to 0, but for rounding. So where the two
    # distributions are equal the gradient is exactly 0.
    return (log_p.exp() * (log_p.detach() - log_q)).sum(-1)


def _with_rest(log_all: Tensor, chosen: Tensor) -> Tensor:
    """Log-probabilities [n, V] → [n, k + 1]: of the chosen tokens [n, k], and of any other token."""
    rest = log_all.scatter(-1, chosen, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat([log_all.gather(-1, chosen), rest], dim=-1)
