"""The format of a job: the lowest version of a worker that reads all of its row.

An older worker silently ignores a column that is newer than itself. A job that uses one therefore requires
the capability `format:<number>`. Workers announce and claim with the numbers of their version, so that older
ones leave the job queued. Jobs without such columns run on any worker: an upgrade may start anywhere.
Boundary: a `method` that is too new is refused by its worker with the reason (`Attempt.method`).
"""

from typing import Any

FORMAT = "format:"
NEWER_COLUMNS = {"validation_split": 2}
"""Column of a claimed job → the first format that has it. Those of format 1 are not listed."""
NEWEST = max(NEWER_COLUMNS.values())
UNDERSTOOD = frozenset(f"{FORMAT}{number}" for number in range(2, NEWEST + 1))
"""Capabilities of a worker of this version."""


def required(columns: dict[str, Any]) -> frozenset[str]:
    """The capability that a job with these columns requires of its worker; empty for format 1."""
    numbers = [NEWER_COLUMNS.get(name, 1) for name, value in columns.items() if value is not None]
    number = max(numbers, default=1)
    return frozenset({f"{FORMAT}{number}"} if number > 1 else ())


def number_of(capabilities: str) -> int:
    """The newest format in a row's capabilities, required or announced."""
    found = (name.removeprefix(FORMAT) for name in capabilities.split() if name.startswith(FORMAT))
    return max(map(int, found), default=1)
