"""The C library's heap: what was freed goes back to the system between the phases of a step.

glibc keeps freed memory in pieces that the next sizes do not fit into; over a run the process then grows to
twice what it needs. Left out: other systems and C libraries, where nothing is done.
"""

from __future__ import annotations

import ctypes
import sys

import torch

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back(device: torch.device) -> None:
    """Costs about a millisecond; on a GPU there is nothing worth it."""
    if _trim is not None and device.type == "cpu":
        _trim(0)
