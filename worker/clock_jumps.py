"""Notices a forward jump of the database's clock, after which an expired lease is no sign of a lost worker.

The clock jumps when the machine of the database and a worker wakes from sleep, when it is set, or when
another server takes over. Live workers then need a moment to renew.
"""

from time import monotonic

from sqlalchemy.orm import Session

from service.platform.clock import read_clock
from service.settings import Settings


class ClockJumps:
    """Compares the database's clock with this process's monotonic one, from call to call."""

    def __init__(self, settings: Settings) -> None:
        self._tolerance_seconds = settings.heartbeat_seconds
        self._pause_seconds = settings.lease_seconds
        self._last: tuple[float, float] | None = None
        """Monotonic time before the last reading, and the reading."""
        self._trusted_from = 0.0

    def is_recent(self, session: Session) -> bool:
        """Whether the clock has jumped within the last `lease_seconds`."""
        started_at, reading = monotonic(), read_clock(session)
        read_at = monotonic()
        if self._last is not None:
            passed_at_most = read_at - self._last[0]
            if reading - self._last[1] > passed_at_most + self._tolerance_seconds:
                self._trusted_from = read_at + self._pause_seconds
        self._last = started_at, reading
        return read_at < self._trusted_from
