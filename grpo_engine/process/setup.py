"""One-time setup of an engine process: libraries' defaults, the heap, imports."""

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULTS = {
    # libgomp's default is to spin for long at barriers, which makes it ten times slower if another process
    # needs a core; without any spinning, short steps are slow
    "GOMP_SPINCOUNT": "10000",
    # oneDNN keeps a thousand compiled products by default
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # torch keeps a thousand more of them, one per shape: 300 MB after a few steps
    "LRU_CACHE_CAPACITY": "64",
}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""
MAX_KEPT_BYTES = 2**30
"""Freed memory to keep at the end of the heap, for the next step's activations."""
MIN_MAPPED_BYTES = 32 * 2**20
"""Larger blocks are mapped separately; glibc accepts no larger threshold."""


def set_library_defaults() -> None:
    """Set environment variables that libraries read when they are imported, unless they are already set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # peft imports bitsandbytes, which recommends a package and warns of each conversion to float16
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    logging.getLogger("transformers.modeling_utils").addFilter(_is_not_load_report)


def _is_not_load_report(record: logging.LogRecord) -> bool:
    """False for the table of unused and missing weights, about which the engine itself warns."""
    message = record.getMessage()
    return "LOAD REPORT" not in message or "CONVERSION" in message


def keep_freed_memory(device_type: str) -> None:
    """On a CPU, make glibc keep large freed blocks, so that the next operation needs no fresh pages."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and device_type == "cpu":
        mallopt(M_MMAP_THRESHOLD, MIN_MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, MAX_KEPT_BYTES)


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """Import modules without the collector, which would take a quarter of the time and find nothing.

    Later collections skip the modules too, because they stay for the life of the process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
