"""Weights are rounded to their type without torch, and as torch does it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.results.merging.rounding import floats, rounded


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_numbers_are_rounded_as_torch_rounds_them(bits: list[int]) -> None:
    edges = [
        0x7F7FFFFF,
        0x7F800000,
        0x7FFFFFFF,
        0xFFFFFFFF,
        0x3F808000,
        0x3F818000,
        0x3F808001,
        0x80000000,
        1,
    ]
    values = np.array([*bits, *edges], np.uint32).view(np.float32)
    expected = torch.from_numpy(values.copy())
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16), ("F32", torch.float32)):
        found = floats(rounded(values, name), name)
        assert np.array_equal(found, expected.to(dtype).float().numpy(), equal_nan=True)
        signs = ~np.isnan(values)
        assert np.array_equal(np.signbit(found)[signs], np.signbit(values)[signs])
