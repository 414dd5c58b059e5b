"""Modules loaded without Python's garbage collector, which finds nothing then and takes a quarter of it.

What was loaded stays for the life of the process, so later collections leave it out too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """For the imports in the block."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
