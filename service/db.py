"""Engine and sessions: one synchronous stack for the API and the worker, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.orm import Session, sessionmaker

from service.settings import Settings


def make_engine(settings: Settings) -> Engine:
    """A pooled engine. SQLite: WAL, foreign keys, BEGIN IMMEDIATE so that writers queue, never deadlock."""
    url = settings.sqlalchemy_url
    if url.startswith("sqlite"):
        settings.home.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": 30, "isolation_level": None})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=10,
        pool_timeout=5,
        connect_args={"connect_timeout": 5, "keepalives_idle": 10, "tcp_user_timeout": 20_000},
    )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    mode = "DEFERRED" if connection.get_execution_options().get("grpo_read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


class Database:
    """Hands out sessions; one `with database.transaction() as session` is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._readers = sessionmaker(engine.execution_options(grpo_read_only=True), expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Commits at the end of the block, rolls back where it raises."""
        with self._sessions() as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent view, for SELECTs only: on SQLite it never waits for a writer."""
        with self._readers() as session, session.begin():
            yield session


def connect(settings: Settings) -> Database:
    """The deployment's database."""
    return Database(make_engine(settings))
