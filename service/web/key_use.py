"""Records when keys were last used: to the minute, and at most once in 5 minutes for each key.

Boundary: one thread with transactions of its own, so that no request waits for it. A use that cannot be
written is lost.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from sqlalchemy import or_, update
from sqlalchemy.exc import SQLAlchemyError

from service.platform.clock import read_clock
from service.platform.db import Database
from service.platform.tables.core import ApiKey

INTERVAL_SECONDS = 300


class KeyUse:
    """Records uses of keys until it is closed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="key-use")
        self._lock = threading.Lock()
        self._due_at: dict[str, float] = {}
        """Key's id → when this process may write its next use, on the monotonic clock."""

    def note(self, key_id: str) -> Future[None] | None:
        """A future that ends when this use is written; None if this process has recently written a use of
        the key."""
        now = time.monotonic()
        with self._lock:
            if now < self._due_at.get(key_id, now):
                return None
            self._due_at[key_id] = now + INTERVAL_SECONDS
        return self._thread.submit(self._write, key_id)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _write(self, key_id: str) -> None:
        try:
            with self._database.transaction() as session:
                minute = read_clock(session) // 60 * 60
                is_old = ApiKey.last_used_at < minute - INTERVAL_SECONDS  # of another process too
                statement = update(ApiKey).where(
                    ApiKey.public_id == key_id, or_(ApiKey.last_used_at.is_(None), is_old)
                )
                session.execute(statement.values(last_used_at=minute))
        except SQLAlchemyError as error:
            structlog.get_logger().warning("use of a key not recorded", key_id=key_id, error=str(error))
