"""The layers of a Llama-like decoder as few operations, each with its own backward.

transformers and peft compute the same out of many small operations, most of which move memory only: on a CPU
they cost more than the matrix products. Every function takes rows [T, …] without padding, computes in the
rows' dtype (sums and norms in float32) and keeps for the backward only what cannot be computed again cheaply.
Each equals its plain formula: `test_kernels.py` compares values and gradients in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu

from grpo_engine.models.fast import native
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

    x [T, I], W_i [O_i, I], `down` all A_i [r, I] one under the other or None, `ups` B_i [O_i, r] with their
    scale in them → [T, O_i] each. LoRA: arXiv 2106.09685.
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
        return _norm(x, weight, epsilon)
    return cast(Tensor, cast(Apply, _RmsNorm.apply)(x, weight, epsilon))


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    if native.takes(x):
        return native.rms_norm(x, at_least_single(weight), epsilon)
    wide = _wide(x)
    return _normed(wide, _inverse_rms(wide, epsilon), weight, x.dtype)


def _inverse_rms(wide: Tensor, epsilon: float) -> Tensor:
    """[…, 1]."""
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    floor = _scalar(epsilon, wide.dtype, wide.device)
    return torch.addcmul(floor, length, length, value=1 / wide.shape[-1]).rsqrt_()


@cache
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def at_least_single(x: Tensor) -> Tensor:
    """In float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _wide(x: Tensor) -> Tensor:
    """A copy in float32 at least: on a CPU operations of two dtypes cost several times those of one."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)


def _normed(wide: Tensor, inverse: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """In place of `wide`."""
    return wide.mul_(inverse).mul_(weight.to(wide.dtype)).to(dtype)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return _norm(x, weight, epsilon)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """dx = i·(dŷ − x·i²·mean(dŷ·x)) with dŷ = dy·w and i the inverse root."""
        x, weight = ctx.saved_tensors
        if native.takes(x, grad) and not ctx.needs_input_grad[1]:
            return native.rms_norm_back(x, at_least_single(weight), grad, ctx.epsilon), None, None
        wide, scaled = _wide(x), _wide(grad)
        inverse = _inverse_rms(wide, ctx.epsilon)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            rows = tuple(range(grad.dim() - 1))
            grad_weight = (scaled * wide * inverse).sum(rows).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None
        scaled.mul_(weight.to(wide.dtype))
        along = torch.linalg.vecdot(scaled, wide)[..., None].mul_(inverse.square()).div_(-x.shape[-1])
        return scaled.addcmul_(wide, along).mul_(inverse).to(x.dtype), grad_weight, None


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864): x [T, H, D] turned by angles.

    `cosine` [T, 1, D] of both halves, `sine` [T, 1, D] negative for the first half.
    """
    if not torch.is_grad_enabled():
        return _turned(x, cosine, sine)
    return cast(Tensor, cast(Apply, _Rotated.apply)(x, cosine, sine))


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    if native.takes(x, cosine, sine):
        return native.rotated(x, cosine, sine)
    return _swapped(x).mul_(sine).add_(x * cosine)


def _swapped(x: Tensor) -> Tensor:
    """Second half of the last dimension before the first."""
    return x.roll(x.shape[-1] // 2, -1)


class _Rotated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Turned back."""
        cosine, sine = ctx.saved_tensors
        return _turned(grad, cosine, -sine), None, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up (arXiv 2002.05202)."""
    if not torch.is_grad_enabled():
        return _gated(gate, up)
    return cast(Tensor, cast(Apply, _SwiGlu.apply)(gate, up))


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    if gate.stride() == up.stride() and native.takes(gate, up):
        return native.swiglu(gate, up)
    return silu(gate).mul_(up)


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _gated(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        if gate.stride() == up.stride() and native.takes(gate, up, grad):
            return native.swiglu_back(gate, up, grad)
        return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)
