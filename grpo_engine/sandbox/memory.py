"""What a sandbox's processes hold together: a limit that a process's own address space does not set.

Boundary: it reads /proc, where each process tells its own; nothing is limited here. A control group would be
exact, but few containers may make one; what is missed between two looks is the kernel's to end, and a sandbox
is what it ends first (`launch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")


def held_bytes(pid: int) -> int:
    """Of this process and all below it. Pages that several have in common count for each of them."""
    return sum(map(_own_bytes, family(pid)))


def family(pid: int) -> Iterator[int]:
    """The process and all below it that are there now."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(task).split():
            yield from family(int(child))


def _own_bytes(pid: int) -> int:
    rows = (line.split() for line in _read(Path(f"/proc/{pid}/status")).splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row and row[0] in _HELD)


def _read(path: Path) -> str:
    """Empty where the process has ended meanwhile."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
