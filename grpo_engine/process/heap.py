"""The C library's heap: what one operation freed is there for the next one.

glibc's own habits suit small objects: it hands large freed blocks back to the system at once, so that each
operation of a pass pays for fresh pages. Left out: other systems and C libraries, where nothing is done.
"""

from __future__ import annotations

import ctypes
import sys

_set = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""
KEPT_BYTES = 2**30
"""Freed memory that stays at the heap's end: a step's activations, which the next step needs again."""
OWN_MAPPING = 32 * 2**20
"""Bytes from which on a block is no part of the heap: the largest that glibc takes."""


def keep_freed(device_type: str) -> None:
    """For the rest of the process; on a GPU there is nothing worth it."""
    if _set is not None and device_type == "cpu":
        _set(M_MMAP_THRESHOLD, OWN_MAPPING)
        _set(M_TRIM_THRESHOLD, KEPT_BYTES)
