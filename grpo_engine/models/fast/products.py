"""Products of rows with a matrix on a CPU, by oneDNN if it is faster than torch's choice.

torch uses MKL for float32, which on processors that are not Intel's reaches half of oneDNN's speed, and on
Intel's divides a row's sum according to the number of rows.
Boundary: values only, no gradient; the same precision, but sums in another order.
"""

from functools import cache
from typing import cast

import torch
from torch import Tensor

MIN_ONEDNN_ELEMENTS = 2**15
"""Number of weights from which oneDNN's products are faster than MKL's."""
MIN_ROWS = 4
"""Fewest rows of a product. Libraries use other kernels for fewer rows, whose sums differ in the last bits.
MKL divides rows among its threads, so there each product has a multiple of this number."""
ROWS = 64
"""Number of rows that the order of a packed weight is optimised for, and of `rowwise_product`'s blocks."""


@cache
def has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this machine's torch has oneDNN's products for the dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False  # an operator of torch's own compiler, which may be renamed
    return dtype is torch.float32 or (
        dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def prefers_onednn(weight: Tensor) -> bool:
    """Whether oneDNN is faster for this weight, whatever the number of rows. False for bfloat16, for which
    torch itself uses oneDNN."""
    is_large = weight.dtype is torch.float32 and weight.numel() >= MIN_ONEDNN_ELEMENTS
    return is_large and has_onednn(weight.dtype, weight.device)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: x [T, I], weight [O, I] (or a transposed view), bias [O] → [T, O]."""
    if prefers_onednn(weight):
        return onednn_product(x, weight, bias)
    rows = _padded(x, -len(x) % MIN_ROWS)
    made = rows @ weight.t() if bias is None else torch.nn.functional.linear(rows, weight, bias)
    return made if rows is x else made[: len(x)]


def add_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    """total [T, O] += x Wᵀ."""
    if prefers_onednn(weight):
        total += onednn_product(x, weight)
    else:
        total.addmm_(x, weight.t())


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`product` by oneDNN; the weight may be reordered (`reordered.py`)."""
    rows = _padded(x, MIN_ROWS - len(x))
    made = cast(Tensor, torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], ""))
    return made if rows is x else made[: len(x)]


def rowwise_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`onednn_product` in which a row's result does not depend on the other rows or on their number."""
    if len(x) == ROWS or not _sums_by_count(x.dtype):
        return onednn_product(x, weight, bias)
    made = [onednn_product(block, weight, bias) for block in _padded(x, -len(x) % ROWS).split(ROWS)]
    return (made[0] if len(made) == 1 else torch.cat(made))[: len(x)]


@cache
def _sums_by_count(dtype: torch.dtype) -> bool:
    """Whether oneDNN divides a row's sum according to the number of rows, as it does with Intel's AMX."""
    return dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported()


def _padded(x: Tensor, missing: int) -> Tensor:
    """On a CPU, the rows with this many more, of zeros."""
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 and x.device.type == "cpu" else x
