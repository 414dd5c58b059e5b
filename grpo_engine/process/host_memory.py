"""The memory of this machine or, if that is less, of the container that this process runs in."""

import os
from contextlib import suppress
from pathlib import Path

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""A container's limit in version 2 and version 1 of control groups; "max", or a huge number: none."""


def usable_bytes() -> int:
    """Bytes that this process and the others of its container may use together."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(limit.read_text()))
    return min(found)
