"""Heartbeats of a worker's helpers, and which helpers have stopped working.

A helper that completes a round records it here. `grpo doctor` and `/readyz` report those that are silent.
Boundary: rows only; helpers are restarted by `worker/supervision.py`.
"""

import socket
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NamedTuple

import structlog
from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.platform.clock import db_now
from service.platform.db import Database, insert_for, reason_of
from service.platform.tables.workers import WorkerHelper
from service.settings import Settings

logger = structlog.get_logger()

SWEEPER, WEBHOOKS, SINKS, CHAT, CLUSTER = "sweeper", "webhooks", "sinks", "chat", "cluster"
GPU = "gpu"
"""Not a helper. Its row exists only while a worker's GPUs fail (`worker/launchers/gpu_check.py`)."""
BEAT_SECONDS = 10.0
"""Shortest time between two writes of a helper."""
SILENT_SECONDS = 60.0
MISSED_SWEEPS = 3
"""A helper is silent after the longer of 60 s and three missed rounds."""
FORGOTTEN_SECONDS = 3600.0
"""Rows of a host without any live helper are deleted after this time."""


class HelperSeen(NamedTuple):
    """A helper, and the age of its last completed round by the database's clock."""

    host: str
    pool: str
    helper: str
    silent_seconds: float
    is_silent: bool


class Heartbeat:
    """Records that one helper of this host works."""

    def __init__(self, database: Database, settings: Settings, helper: str) -> None:
        self.helper = helper
        self._database = database
        self._row = {"host": this_host(), "pool": settings.pool, "helper": helper}
        self._beaten_at = -BEAT_SECONDS

    def beat(self) -> None:
        """Call after each completed round."""
        if monotonic() - self._beaten_at >= BEAT_SECONDS:
            self._write(lambda session: _upsert(session, [self._row], {"seen_at": db_now()}))

    def leave(self) -> None:
        """Remove the row because the helper ends on purpose."""
        self._write(lambda session: session.execute(delete(WorkerHelper).filter_by(**self._row)))

    def _write(self, change: Callable[[Session], object]) -> None:
        """Write a heartbeat; a failure is only logged, because it must not end the helper."""
        try:
            with self._database.transaction() as session:
                change(session)
            self._beaten_at = monotonic()
        except SQLAlchemyError as error:
            logger.warning("heartbeat not written", error=reason_of(error))


def this_host() -> str:
    return socket.gethostname()[:128]


def expect(session: Session, pool: str, helpers: Iterable[str]) -> None:
    """Add rows for helpers that should run on this host, so that one that never completes a round is seen."""
    _upsert(session, [{"host": this_host(), "pool": pool, "helper": helper} for helper in helpers], None)
    live_hosts = select(WorkerHelper.host).where(WorkerHelper.seen_at >= db_now() - FORGOTTEN_SECONDS)
    session.execute(delete(WorkerHelper).where(WorkerHelper.host.not_in(live_hosts)))


def helpers_seen(session: Session, sweep_seconds: float) -> list[HelperSeen]:
    """All expected helpers, by host, pool and name."""
    limit_seconds = max(SILENT_SECONDS, MISSED_SWEEPS * sweep_seconds)
    columns = (WorkerHelper.host, WorkerHelper.pool, WorkerHelper.helper)
    rows = session.execute(select(*columns, db_now() - WorkerHelper.seen_at).order_by(*columns))
    return [HelperSeen(*row, is_silent=row[-1] > limit_seconds) for row in rows]


def _upsert(session: Session, rows: list[dict[str, str]], changes: dict[str, Any] | None) -> None:
    insert = insert_for(session)(WorkerHelper).values([row | {"seen_at": db_now()} for row in rows])
    key = ["host", "pool", "helper"]
    session.execute(
        insert.on_conflict_do_update(index_elements=key, set_=changes)
        if changes
        else insert.on_conflict_do_nothing()
    )
