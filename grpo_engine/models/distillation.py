"""KL divergence of whole distributions from hidden states, without a [N, V] tensor of logits.

As in `logprobs.py`: chunks that are computed again in the backward pass, sums in float32.
"""

import torch
from torch import Tensor

from grpo_engine.models.logprobs import LogitsOf, by_chunks, every_logprob, num_logits

CHUNK_ELEMENTS = 2**24
"""Logits of one chunk, for the student and for the teacher; 64 MiB each in float32."""


def kl_to_teacher(
    student_N: Tensor,
    teacher_N: Tensor,
    targets_N: Tensor,
    logits_of: LogitsOf,
    *,
    temperature: float,
    top_k: int | None = None,
) -> tuple[Tensor, Tensor]:
    """KL(student ‖ teacher) of each token [N], and the student's log-probability of its target [N], float32.

    Both get hidden states [N, H]. The teacher's states and the returned log-probabilities have no gradient.

    `Σ_v p_v (log p_v − log q_v)` over the vocabulary, p the student's distribution and q the teacher's (SDPO,
    arXiv 2601.20802). With `top_k`: over the teacher's k likeliest tokens and one outcome for all others,
    which is never more than the whole KL.
    """
    vocab = num_logits(logits_of, student_N)
    bucketed = top_k if top_k is not None and top_k < vocab else None
    tensors, size = (student_N, teacher_N.detach(), targets_N), max(1, CHUNK_ELEMENTS // vocab)
    kl, logprobs = zip(*by_chunks(_chunk_kl, tensors, size, logits_of, temperature, bucketed), strict=True)
    return torch.cat(kl), torch.cat(logprobs)


def _chunk_kl(
    student: Tensor,
    teacher: Tensor,
    targets: Tensor,
    logits_of: LogitsOf,
    temperature: float,
    top_k: int | None,
) -> tuple[Tensor, Tensor]:
    log_p = every_logprob(student, logits_of, temperature)
    chosen = log_p.detach().gather(1, targets[:, None]).squeeze(1)
    with torch.no_grad():  # the output layer belongs to the teacher too
        log_q = every_logprob(teacher, logits_of, temperature)
    if top_k is not None:
        likeliest = log_q.topk(top_k).indices
        log_p, log_q = _with_rest(log_p, likeliest), _with_rest(log_q, likeliest)
    # In p · log p only p needs its gradient: that of log p sums to 0, except for rounding. So the gradient is
    # exactly 0 if the two distributions are equal.
    return (log_p.exp() * (log_p.detach() - log_q)).sum(-1), chosen


def _with_rest(log_all: Tensor, chosen: Tensor) -> Tensor:
    """Log-probabilities [n, V] → [n, k + 1]: of the chosen tokens [n, k], and of any other token."""
    rest = log_all.scatter(-1, chosen, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat([log_all.gather(-1, chosen), rest], dim=-1)
