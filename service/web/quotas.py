"""What one tenant may use at once: unfinished jobs, stored bytes, requests per second.

Boundary: counts and refuses with 429. The limits are the settings'; running jobs are limited where workers
claim them (`jobs/queue.py`), live streams where they are fed (`jobs/stream.py`), the size of one upload where
its bytes arrive. The first two hold against any number of API processes, because they are asked under the
tenant's lock; the rate is each process's own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from service.platform.errors import TooManyRequests
from service.settings import Settings

JOB_SECONDS = 30
"""`Retry-After` of who waits for a job to end."""
STORAGE_SECONDS = 3600
"""`Retry-After` of who has no space: nothing goes by itself but what expires, after an hour or later."""
ROUNDING_SECONDS = 1e-6
"""Sums of fractions of a second are not exact."""


class NearLimit(Exception):
    """Others who are at it at the same time could take the last places: who asks again must be alone."""


def check_jobs(unfinished: int, unseen: int, settings: Settings) -> None:
    """Room for `unfinished` jobs. Raises TooManyRequests; NearLimit where `unseen` others may decide.

    The caller shares or holds the tenant's lock (`locks.py`), which tells how many others that are.
    """
    limit = settings.max_queued_jobs
    if unfinished > limit:
        raise TooManyRequests(
            f"There are {limit} unfinished jobs, the limit here: wait for one or cancel one.",
            headers={"Retry-After": str(JOB_SECONDS)},
        )
    if unfinished + unseen > limit:
        raise NearLimit


def check_storage(used: int, num_bytes: int, settings: Settings) -> None:
    """Room for so many bytes more. The caller holds the tenant's lock. Raises TooManyRequests.

    A client that retries at once would send the same bytes again in vain, so it is told not to.
    """
    limit = settings.max_stored_bytes
    if limit is None or used + num_bytes <= limit:
        return
    raise TooManyRequests(
        f"Files and results take {used} bytes, {limit} are allowed: delete files or models.",
        code="storage_quota_exceeded",
        headers={"Retry-After": str(STORAGE_SECONDS), "x-should-retry": "false"},
    )


class RequestRate:
    """Requests per second of each tenant to this process: a bucket that holds one second's worth.

    Kept as the time at which the bucket will be full again (GCRA), one number for each tenant with a key.
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def spend(self, tenant: str) -> None:
        """Take one request out of the tenant's bucket. Raises TooManyRequests where it is empty."""
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
        raise TooManyRequests(
            f"There are more than {self._per_second:g} requests per second, the limit here.",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(math.ceil(wait))},
        )
