"""Total memory of a sandbox's processes, which a limit on one process's address space does not bound.

It is read from /proc. A process may exit between two reads, so a missing entry is never an error. A control
group would be exact, but few containers may create one; if the machine runs out of memory between two reads,
the kernel kills a sandbox first (`launch.py`).
"""

import os
from collections.abc import Iterator

_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")


def held_bytes(pid: int) -> int:
    """Memory of this process and all its descendants; shared pages count for each of them."""
    return sum(map(_own_bytes, process_tree(pid)))


def process_tree(pid: int) -> Iterator[int]:
    """Yield the process id and those of all its descendants."""
    yield pid
    for thread in _entries(f"/proc/{pid}/task"):
        for child in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield from process_tree(int(child))


def _own_bytes(pid: int) -> int:
    rows = (line.split() for line in _read(f"/proc/{pid}/status").splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row[0] in _HELD)


def _entries(folder: str) -> list[str]:
    """Names in a folder; empty if the process has exited."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    """A file's text; empty if the process has exited."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
