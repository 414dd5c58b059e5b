"""Products of rows with a matrix on a CPU, by oneDNN where torch would not ask it.

torch gives float32 products to MKL, which on processors of other makers reaches half of what oneDNN does.
Boundary: values only, no gradient; the same number of bits, and sums in another order.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from torch import Tensor

SMALLEST = 2**21
"""Multiplications below which asking oneDNN takes longer than MKL's whole product."""


@cache
def has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this machine's torch has oneDNN's products for the dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False  # it is the operator of torch's own compiler, and another torch may name it otherwise
    return dtype is torch.float32 or (
        dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: x [T, I], weight [O, I] (a transposed view will do), bias [O] → [T, O]."""
    if _is_for_onednn(x, weight):
        return onednn_product(x, weight, bias)
    return x @ weight.t() if bias is None else torch.nn.functional.linear(x, weight, bias)


def add_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    """total [T, O] += x Wᵀ."""
    if _is_for_onednn(x, weight):
        total += onednn_product(x, weight)
    else:
        total.addmm_(x, weight.t())


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    """torch itself asks it for bfloat16."""
    is_large = weight.dtype is torch.float32 and len(x) * weight.numel() >= SMALLEST
    return is_large and has_onednn(weight.dtype, weight.device)


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same; the weight may be one that `packed.py` laid out."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))
