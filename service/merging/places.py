"""How many merges one API process makes at once: each takes a processor and a folder for its adapter.

Boundary: counts and refuses with 429.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import TooManyRequests

IN_ALL = 8
FULL_SECONDS = 30
"""`Retry-After`."""


class Places:
    """`of_tenant` of them for each tenant, IN_ALL for all."""

    def __init__(self, of_tenant: int) -> None:
        self._of_tenant = of_tenant
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    @contextmanager
    def taken(self, tenant: str) -> Iterator[None]:
        """One of them, until the block ends. Raises TooManyRequests where none is left."""
        with self._lock:
            self._check(tenant)
            self._taken[tenant] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[tenant] -= 1
                self._taken += Counter()  # forgets who has none

    def _check(self, tenant: str) -> None:
        if self._taken[tenant] < self._of_tenant and self.num_taken < IN_ALL:
            return
        raise TooManyRequests(
            f"Merged models are being sent, at once at most {self._of_tenant} to one tenant and {IN_ALL} in "
            "all: wait for one to end.",
            code="too_many_merges",
            headers={"Retry-After": str(FULL_SECONDS)},
        )
