"""Log-probability and entropy of chosen tokens without a [T, V] tensor of logits.

The backward pass recomputes the output layer in chunks, so peak memory does not grow with the number of
tokens times the vocabulary. Sums are in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from grpo_engine.models.fast.operations import logprobs_and_gradients
from grpo_engine.models.fast.products import product

T = TypeVar("T")

GPU_CHUNK_ELEMENTS = 2**28
"""Logits of one chunk: 1 GiB in float32, 1,766 rows of a vocabulary of 151,936."""
CPU_CHUNK_ELEMENTS = 2**20
"""Logits of one chunk on a CPU, small enough for its cache."""

LogitsOf = Callable[[Tensor], Tensor]
"""Hidden states [n, H] → logits [n, V]."""


@dataclass(frozen=True, slots=True)
class CappedHead:
    """An output layer whose logits are bounded by c · tanh(logit / c), as in Gemma 2 (arXiv 2408.00118)."""

    layer: torch.nn.Linear
    cap: float

    @property
    def weight(self) -> Tensor:
        return self.layer.weight

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.cap * torch.tanh(self.layer(hidden) / self.cap)


def token_logprobs(
    hidden_N: Tensor,
    targets_N: Tensor,
    logits_of: LogitsOf,
    *,
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Hidden states [N, H] and token ids [N] → log-probabilities [N] and entropies [N], float32.

    The entropy has a gradient only with `entropy_gradient`. A frozen output layer is read once, because its
    gradient is computed in the forward pass.
    """
    elements = CPU_CHUNK_ELEMENTS if hidden_N.device.type == "cpu" else GPU_CHUNK_ELEMENTS
    chunk = max(1, elements // num_logits(logits_of, hidden_N))
    if hidden_N.requires_grad and not entropy_gradient and is_frozen(logits_of):
        head = cast(torch.nn.Linear, logits_of)
        made = _FrozenHead.apply(hidden_N, targets_N, head.weight, head.bias, temperature, chunk)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, Tensor], made)
    options = logits_of, temperature, entropy_gradient
    logprobs, entropies = zip(
        *by_chunks(_chunk_logprobs, (hidden_N, targets_N), chunk, *options), strict=True
    )
    return torch.cat(logprobs), torch.cat(entropies)


def num_logits(logits_of: LogitsOf, hidden_N: Tensor) -> int:
    """V of logits [N, V]; if there is no output layer, the hidden states are the logits."""
    weight = getattr(logits_of, "weight", None)
    return hidden_N.shape[-1] if weight is None else len(weight)


def by_chunks(compute: Callable[..., T], tensors_N: Sequence[Tensor], size: int, *options: Any) -> list[T]:
    """`compute(*tensors, *options)` in chunks of `size` rows, which the backward pass recomputes if there
    are several."""
    recompute = torch.is_grad_enabled() and len(tensors_N[0]) > size
    run = partial(checkpoint, compute, use_reentrant=False) if recompute else compute
    return [run(*chunk, *options) for chunk in zip(*(each.split(size) for each in tensors_N), strict=True)]


def _chunk_logprobs(
    hidden: Tensor, targets: Tensor, logits_of: LogitsOf, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    log_all = every_logprob(hidden, logits_of, temperature)
    chosen = log_all.gather(1, targets[:, None]).squeeze(1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        entropy = -(log_all.exp() * log_all).nan_to_num(0.0).sum(-1)
    return chosen, entropy


def is_frozen(logits_of: LogitsOf) -> bool:
    """Whether it is a plain linear layer that is not trained."""
    return type(logits_of) is torch.nn.Linear and not any(p.requires_grad for p in logits_of.parameters())


class _FrozenHead(Function):
    """Log-probabilities and entropies through a frozen output layer.

    The gradient of a token's log-probability is its own scalar times −(Σ_v p_v w_v − w_target) / temperature,
    so the forward computes that row [H] beside the value, and the logits are never needed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_N: Tensor,
        targets_N: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        chosen = hidden_N.new_empty(len(targets_N), dtype=torch.float32)
        entropy, slopes = torch.empty_like(chosen), torch.empty_like(hidden_N)
        for start in range(0, len(targets_N), chunk):
            here = slice(start, start + chunk)
            logits = product(hidden_N[here], weight, bias)
            chosen[here], entropy[here], rises = logprobs_and_gradients(logits, targets_N[here], temperature)
            slopes[here] = product(rises, weight.t())
        ctx.save_for_backward(slopes)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Any, ...]:
        (slopes,) = ctx.saved_tensors
        return (slopes * (grad_N / -ctx.temperature)[:, None]).to(slopes.dtype), None, None, None, None, None


def every_logprob(hidden: Tensor, logits_of: LogitsOf, temperature: float) -> Tensor:
    """Log-probabilities [n, V] in float32. The temperature divides the logits here and nowhere else."""
    return (logits_of(hidden).float() / temperature).log_softmax(-1)
