"""The layers of a Llama-like decoder as few operations, each with its own backward pass.

transformers and peft use many small operations, most of which only move memory: on a CPU they cost more than
the matrix products. Every function takes rows [T, …] without padding, computes in the rows' dtype (sums and
norms in float32) and keeps for the backward pass only values that are expensive to recompute.
`test_kernels.py` compares values and gradients with the plain formulas in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from grpo_engine.models.fast import operations
from grpo_engine.models.fast.products import add_product, product

Apply = Callable[..., Any]


def lora_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    down: Tensor | None,
    ups: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """y_i = x W_iᵀ + b_i + (x A_iᵀ) B_iᵀ of linear layers that read the same rows.

    x [T, I], W_i [O_i, I], `down` all A_i [r, I] stacked or None, `ups` B_i [O_i, r] with their scale
    → [T, O_i] each. LoRA: arXiv 2106.09685.
    """
    if not torch.is_grad_enabled():
        return tuple(_linears(x, weights, biases, down, ups)[0])
    made = cast(Apply, _LoraLinears.apply)(x, down, len(weights), *weights, *biases, *ups)
    return made if isinstance(made, tuple) else (made,)


def _linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    down: Tensor | None,
    ups: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor | None]:
    made = [product(x, *pair) for pair in zip(weights, biases, strict=True)]
    if down is None:
        return made, None
    low = product(x, down)
    for y, up, part in zip(made, ups, low.split([up.shape[1] for up in ups], 1), strict=True):
        y.addmm_(part, up.t())
    return made, low


class _LoraLinears(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, down: Tensor | None, count: int, *rest: Any) -> tuple[Tensor, ...]:
        weights, biases, ups = rest[:count], rest[count : 2 * count], rest[2 * count :]
        made, low = _linears(x, weights, biases, down, ups)
        ctx.count = count
        ctx.save_for_backward(x, down, low, *weights, *ups)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, down, low, *rest = ctx.saved_tensors
        weights, ups = rest[: ctx.count], rest[ctx.count :]
        wants_x, wants_down = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        wants_weight = ctx.needs_input_grad[3 : 3 + ctx.count]
        wants_bias = ctx.needs_input_grad[3 + ctx.count : 3 + 2 * ctx.count]
        grad_x = _through_weights(grads, weights) if wants_x else None
        grad_down, grad_ups = None, [None] * len(ups)
        if down is not None:
            back = torch.cat([product(grad, up.t()) for grad, up in zip(grads, ups, strict=True)], 1)
            if grad_x is not None:
                grad_x.addmm_(back, down)
            if wants_down:
                grad_down = back.t() @ x
            if any(ctx.needs_input_grad[3 + 2 * ctx.count :]):
                parts = low.split([up.shape[1] for up in ups], 1)
                grad_ups = [grad.t() @ part for grad, part in zip(grads, parts, strict=True)]
        return (
            grad_x,
            grad_down,
            None,
            *(
                product(grad.t(), x.t()) if wanted else None
                for grad, wanted in zip(grads, wants_weight, strict=True)
            ),
            *(grad.sum(0) if wanted else None for grad, wanted in zip(grads, wants_bias, strict=True)),
            *grad_ups,
        )


def _through_weights(grads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Σ_i dy_i W_i."""
    total = product(grads[0], weights[0].t())
    for grad, weight in zip(grads[1:], weights[1:], strict=True):
        add_product(total, grad, weight.t())
    return total


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / √(mean x² + ε) · w over the last dimension (arXiv 1910.07467)."""
    if not torch.is_grad_enabled():
        return operations.rms_norm(x, weight, epsilon)
    return cast(Tensor, cast(Apply, _RmsNorm.apply)(x, weight, epsilon))


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return operations.rms_norm(x, weight, epsilon)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        return *operations.rms_norm_back(x, weight, grad, ctx.epsilon, of_x, of_weight), None


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864) of x [T, H, D].

    `cosine` [T, 1, D] of both halves, `sine` [T, 1, D] negative for the first half.
    """
    if not torch.is_grad_enabled():
        return operations.rotated(x, cosine, sine)
    return cast(Tensor, cast(Apply, _Rotated.apply)(x, cosine, sine))


class _Rotated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return operations.rotated(x, cosine, sine)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """The inverse rotation."""
        cosine, sine = ctx.saved_tensors
        return operations.rotated(grad, cosine, -sine), None, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up (arXiv 2002.05202)."""
    if not torch.is_grad_enabled():
        return operations.swiglu(gate, up)
    return cast(Tensor, cast(Apply, _SwiGlu.apply)(gate, up))


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return operations.swiglu(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return operations.swiglu_back(gate, up, grad)
