"""The limits of tenants: unfinished jobs, stored bytes, chats, requests per second, concurrent operations.

All of them refuse with 429 and `Retry-After`. Unfinished jobs and stored bytes are counted in the database
under the tenant's lock (`platform/db.py`), so they hold across all API processes; request rates and
concurrent operations, chats among them, are limited in each process. Boundary: the limit of running jobs is
applied where workers claim them, the size of one upload where its bytes arrive.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.platform.errors import TooManyRequests
from service.settings import Settings

UNFINISHED_JOBS_RETRY_SECONDS = 30
STORED_BYTES_RETRY_SECONDS = 3600
"""`Retry-After` at the storage limit: files expire after an hour at the earliest."""
RETRY_SECONDS = 5
ROUNDING_SECONDS = 1e-6
"""Tolerance, because sums of fractions of a second are not exact."""


def check_unfinished_jobs(num_jobs: int, settings: Settings) -> None:
    """Raise TooManyRequests if a tenant has more than its limit. The caller holds the tenant's lock."""
    limit = settings.max_queued_jobs
    if num_jobs > limit:
        raise TooManyRequests(
            f"Limit of {limit} unfinished jobs reached. Wait for one to finish, or cancel one.",
            headers={"Retry-After": str(UNFINISHED_JOBS_RETRY_SECONDS)},
        )


def check_stored_bytes(used: int, num_bytes: int, settings: Settings) -> None:
    """Raise TooManyRequests if `num_bytes` more do not fit. The caller holds the tenant's lock.

    The error's header `x-should-retry` stops automatic retries, because the same bytes would be refused
    again.
    """
    limit = settings.max_stored_bytes
    if limit is None or used + num_bytes <= limit:
        return
    raise TooManyRequests(
        f"Storage limit of {limit} bytes exceeded ({used} in use, {num_bytes} more requested). "
        "Delete files or models.",
        code="storage_quota_exceeded",
        headers={"Retry-After": str(STORED_BYTES_RETRY_SECONDS), "x-should-retry": "false"},
    )


class RequestRate:
    """Requests per second of each tenant, or of a shared job's viewers, to this process.

    A bucket holds one second's worth. For each, only the time at which the bucket will be full again is
    stored (GCRA).
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def spend(self, tenant: str) -> None:
        """Take one request out of the tenant's bucket. Raises TooManyRequests if it is empty."""
        if self._per_second is None:
            return
        each = 1 / self._per_second
        with self._lock:
            now = self._clock()
            full_at = max(now, self._full_at.get(tenant, now)) + each
            wait = full_at - now - max(1.0, each)
            if wait <= ROUNDING_SECONDS:
                self._full_at[tenant] = full_at
                return
        retry_seconds = math.ceil(wait)
        raise TooManyRequests(
            f"Limit of {self._per_second:g} requests per second reached. Retry in {retry_seconds} s.",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(retry_seconds)},
        )


@dataclass(eq=False)
class ConcurrencyLimit:
    """Concurrent operations of one kind in this process; None: unlimited."""

    noun: str
    """Plural, for the error message: `grader runs`."""
    per_tenant: int | None
    overall: int | None = None
    code: str = TooManyRequests.code
    retry_seconds: int = RETRY_SECONDS
    _num_by_tenant: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_running(self) -> int:
        return self._num_by_tenant.total()

    @contextmanager
    def slot(self, tenant: str) -> Iterator[None]:
        """Count one operation until the block ends. Raises TooManyRequests at a limit."""
        with self._lock:
            if self._is_reached(tenant):
                raise self._refusal()
            self._num_by_tenant[tenant] += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_by_tenant[tenant] -= 1
                self._num_by_tenant += Counter()  # drops tenants without operations

    def _is_reached(self, tenant: str) -> bool:
        pairs = ((self._num_by_tenant[tenant], self.per_tenant), (self.num_running, self.overall))
        return any(limit is not None and num >= limit for num, limit in pairs)

    def _refusal(self) -> TooManyRequests:
        overall = "" if self.overall is None else f", {self.overall} overall"
        return TooManyRequests(
            f"Too many {self.noun} (limit: {self.per_tenant} per tenant{overall}). "
            f"Retry in {self.retry_seconds} s.",
            code=self.code,
            headers={"Retry-After": str(self.retry_seconds)},
        )
