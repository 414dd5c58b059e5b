"""Requests that take a thread, a process or a folder for long: few at once, and nobody keeps the others out.

Boundary: counts within this process, and refuses with 429.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from service.platform.errors import TooManyRequests

RETRY_SECONDS = 5


class Turns:
    """At most `in_all` at once, `of_tenant` of them for one tenant."""

    def __init__(
        self,
        in_all: int,
        of_tenant: int,
        doing: str,
        *,
        code: str = TooManyRequests.code,
        retry_seconds: int = RETRY_SECONDS,
    ) -> None:
        self._in_all, self._of_tenant = in_all, of_tenant
        self._doing = doing
        """For the refusal: `Graders are being run`."""
        self._code, self._retry_seconds = code, retry_seconds
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
        if self._taken[tenant] < self._of_tenant and self.num_taken < self._in_all:
            return
        raise TooManyRequests(
            f"{self._doing}, at once at most {self._of_tenant} for one tenant and {self._in_all} in all: "
            "wait for one to end.",
            code=self._code,
            headers={"Retry-After": str(self._retry_seconds)},
        )
