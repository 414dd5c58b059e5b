"""Linear layers for a few rows at a time on a CPU: weights laid out once as oneDNN's products want them.

torch's own product lays a bfloat16 weight out anew in every call, which for the rows of a decoding costs as
much as the product. The adapter takes part in the same product: its B stands beside the weight, and its low
rows beside the input. Boundary: no gradient, and a copy of the weights for as long as it lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor

from grpo_engine.models.fast.products import has_onednn, onednn_product, prefers_onednn

ROWS = 64
"""Number of rows that the layout is made for; any number is correct."""


def packs(weight: Tensor) -> bool:
    """Whether a copy of the weight for oneDNN is worth its memory."""
    is_bfloat16 = weight.dtype is torch.bfloat16 and has_onednn(weight.dtype, weight.device)
    return is_bfloat16 or prefers_onednn(weight)


@dataclass(frozen=True, slots=True)
class Packed:
    """One layer [O, I], with an adapter of rank r or without."""

    weight: Tensor
    """[O, I + r], opaque: only `onednn_product` reads it."""
    bias: Tensor | None
    down: Tensor | None
    """[r, I], opaque."""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, down: Tensor | None, up: Tensor | None) -> Self:
        """weight [O, I], bias [O]; the adapter's A [r, I] and scaled B [O, r]."""
        if down is None or up is None:
            return cls(_laid_out(weight), bias, None)
        return cls(_laid_out(torch.cat([weight, up], 1)), bias, _laid_out(down))

    def __call__(self, x: Tensor) -> tuple[Tensor]:
        """x [B, I] → [B, O]."""
        if self.down is not None:
            x = torch.cat([x, onednn_product(x, self.down)], 1)
        return (onednn_product(x, self.weight, self.bias),)


def _laid_out(weight: Tensor) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS))
