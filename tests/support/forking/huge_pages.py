"""Pages of 2 MB for the memory of a process: a fork copies the table of its pages, an entry for each."""

import ctypes
import sys
from pathlib import Path

MADV_COLLAPSE = 25
PAGE_BYTES = 2 << 20


def use_huge_pages() -> None:
    """Move as much memory as possible to such pages; nothing changes before Linux 6.1."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, *_file = line.split()
        begin, end = (int(address, 16) for address in span.split("-"))
        first, last = -(-begin // PAGE_BYTES), end // PAGE_BYTES
        if "w" in mode and last > first:
            size = (last - first) * PAGE_BYTES
            libc.madvise(ctypes.c_void_p(first * PAGE_BYTES), ctypes.c_size_t(size), MADV_COLLAPSE)
