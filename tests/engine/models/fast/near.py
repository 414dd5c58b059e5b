"""Numbers for the compiled operations, and how near to their formulas they have to come."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Of a result in float32 sums, rounded once: half a step of bfloat16 is 2^-9 of the number."""


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: Tensor, exact: Tensor) -> None:
    allowed = TOLERANCE[found.dtype] * (1 + exact.abs())
    assert bool(((found.double() - exact).abs() <= allowed).all())
