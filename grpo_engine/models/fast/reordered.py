"""Linear layers for a few rows at a time on a CPU, with weights reordered once for oneDNN.

torch's own product reorders a bfloat16 weight in every call, which costs as much as the product itself when
decoding. The adapter is part of the same product: B is appended to the weight, and x Aᵀ to the input.
Boundary: no gradient; holds a copy of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_engine.models.fast import native
from grpo_engine.models.fast.products import ROWS, has_onednn, rowwise_product

MOST_COMPILED = 2**16
"""Entries of A up to which the compiled product is faster than two calls of libraries."""


def can_reorder(weight: Tensor) -> bool:
    """Whether oneDNN can read a copy of the weight. In MKL's products a row may depend on the other rows."""
    return has_onednn(weight.dtype, weight.device)


@dataclass(frozen=True, slots=True)
class ReorderedLinear:
    """One layer [O, I], with an adapter of rank r or without."""

    weight: Tensor
    """[O, I + r], reordered: only oneDNN reads it."""
    bias: Tensor | None
    append: Callable[[Tensor], Tensor] | None
    """x [B, I] → [x | x Aᵀ] [B, I + r]."""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, down: Tensor | None, up: Tensor | None) -> Self:
        """weight [O, I], bias [O]; the adapter's A [r, I] and scaled B [O, r]."""
        if down is None or up is None:
            return cls(_reordered(weight), bias, None)
        return cls(_reordered(torch.cat([weight, up], 1)), bias, _appending(down.detach()))

    def __call__(self, x: Tensor) -> tuple[Tensor]:
        """x [B, I] → [B, O]."""
        if self.append is not None:
            x = self.append(x)
        return (rowwise_product(x, self.weight, self.bias),)


def _appending(down: Tensor) -> Callable[[Tensor], Tensor]:
    """The faster `ReorderedLinear.append` for A [r, I]. The choice depends on A alone, so that a row's result
    does not depend on the other rows."""
    if down.numel() <= MOST_COMPILED and native.library() is not None:
        columns = pad(down.float().t(), (0, -len(down) % native.LANES)).contiguous()
        return lambda x: native.append_product(x, columns, len(down))
    reordered = _reordered(down)
    return lambda x: torch.cat([x, rowwise_product(x, reordered)], 1)


def _reordered(weight: Tensor) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS))
