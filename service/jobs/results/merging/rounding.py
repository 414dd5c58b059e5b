"""Bytes of weights ↔ float32, and whether this machine's products are those of another one.

Boundary: numpy, which has no bfloat16; there the upper half of a float32 is taken.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MERGED = ("F32", "F16", "BF16")
"""What can be merged into; the rest are integers, scaled ones or 8 bits."""
_NAN = 0x7FC0


def floats(data: bytes, dtype: str) -> Floats:
    """The values of little-endian weights of a dtype in MERGED, exactly."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)


def rounded(values: Floats, dtype: str) -> bytes:
    """Each value as the nearest one of `dtype`, a tie to the even one; too large ones are infinite."""
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype("<f2").tobytes()
    bits = np.ascontiguousarray(values).view(np.uint32)
    halves = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    # the carry of a NaN's bits would end in its sign
    halves[np.isnan(values)] = _NAN
    return halves.astype("<u2").tobytes()


@cache
def arithmetic() -> str:
    """Equal where products of this process have the bits of another one's.

    Sums are made in an order that depends on the processor and on numpy's build. Parts of an answer that come
    from two machines must fit, so this is part of its entity tag.
    """
    numbers = np.random.default_rng(0)
    left, right = (numbers.standard_normal(size, np.float32) for size in ((64, 48), (48, 64)))
    return sha256((left @ right).tobytes() + np.__version__.encode()).hexdigest()
