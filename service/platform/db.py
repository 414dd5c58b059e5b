"""Engine, sessions and locks: one synchronous stack for the API and the worker, on SQLite and PostgreSQL."""

import hashlib
import sqlite3
from contextlib import AbstractContextManager
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from service.settings import Settings

OUTAGES = (OperationalError, InterfaceError, PoolTimeout)
"""Errors if the database is down, restarting or out of connections."""
IDLE_SECONDS = 20
"""PostgreSQL ends transactions that are idle for longer, so that a frozen process loses its locks and another
worker can take over its job."""
POSTGRESQL_CONNECTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "tcp_user_timeout": 20_000,
    "client_encoding": "UTF8",
    "target_session_attrs": "read-write",
}
"""A standby refuses the connection, so that it counts as an outage."""
LOCK_SECONDS = 10
"""How long a statement on PostgreSQL waits for a lock."""
POSTGRESQL_DISK_FULL = "53100"
POSTGRESQL_OUTAGES = ("25006", "25P03")
"""The server has become read-only; it has ended a transaction that was idle for too long. psycopg counts both
as internal errors."""
POSTGRESQL_REFUSALS = ("42501", "42P01", "42703")
"""Insufficient rights; a missing table; a missing column."""
_LOCK = text("SELECT pg_advisory_xact_lock(:number)")
_READING: dict[str, dict[str, Any]] = {
    "sqlite": {"grpo_read_only": True},
    "postgresql": {"isolation_level": "AUTOCOMMIT"},
}
"""Execution options of sessions that only read. Omitting BEGIN and COMMIT halves the round trips."""
_SNAPSHOT = _READING | {"postgresql": {"isolation_level": "REPEATABLE READ"}}


def make_engine(settings: Settings) -> Engine:
    """A pooled engine. SQLite: WAL, foreign keys, BEGIN IMMEDIATE so that writers queue, never deadlock.

    Error messages contain the statement without its values, which may include secrets.
    """
    url = settings.sqlalchemy_url
    options: dict[str, Any] = {"json_deserializer": from_json, "hide_parameters": True}
    if url.startswith("sqlite"):
        settings.home.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": 30, "isolation_level": None}, **options)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=20,
        max_overflow=0,
        pool_timeout=5,
        pool_use_lifo=True,
        pool_pre_ping=True,
        connect_args=POSTGRESQL_CONNECTIONS,
        **options,
    )
    event.listen(engine, "connect", _prepare_postgresql)
    event.listen(engine, "handle_error", _as_outage)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in (None, "UTF8"):
        import psycopg  # only PostgreSQL's processes load it

        connection.close()
        raise psycopg.OperationalError(f"its encoding is {encoding}: create a database with ENCODING 'UTF8'")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
    connection.commit()


def _as_outage(context: ExceptionContext) -> OperationalError | None:
    """Translate errors of POSTGRESQL_OUTAGES to that of a lost connection; the pool then opens new ones."""
    cause = context.original_exception
    if getattr(cause, "sqlstate", None) not in POSTGRESQL_OUTAGES:
        return None
    context.is_disconnect = True
    return OperationalError(context.statement, None, cause, hide_parameters=True, connection_invalidated=True)


def _begin_sqlite(connection: Connection) -> None:
    mode = "DEFERRED" if connection.get_execution_options().get("grpo_read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


Executor = Session | Connection
"""Anything that executes statements without the ORM."""


def is_postgresql(executor: Executor) -> bool:
    bound = executor.get_bind() if isinstance(executor, Session) else executor
    return bound.dialect.name == "postgresql"


def insert_for(executor: Executor) -> Any:
    """The dialect's `insert`, which supports ON CONFLICT."""
    return postgresql.insert if is_postgresql(executor) else sqlite.insert


def is_disk_full(error: Exception) -> bool:
    """Whether a database error says that the disk of the database is full."""
    cause = getattr(error, "orig", None)
    is_full_sqlite = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return is_full_sqlite or getattr(cause, "sqlstate", None) == POSTGRESQL_DISK_FULL


def refusal_of(error: Exception) -> str | None:
    """Why PostgreSQL refuses a statement: missing rights or another schema. None for other errors."""
    cause = getattr(error, "orig", None)
    is_refused = getattr(cause, "sqlstate", None) in POSTGRESQL_REFUSALS
    return str(cause).splitlines()[0] if is_refused else None


def reason_of(error: Exception) -> str:
    """An error's kind and, if the database refuses the statement or its disk is full, why; no statement."""
    why = "the disk of the database is full" if is_disk_full(error) else refusal_of(error)
    return f"{type(error).__name__}: {why}" if why else type(error).__name__


class Database:
    """Provides sessions; one `with database.transaction() as session` is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        reading = engine.execution_options(**_READING[engine.name])
        self._readers = sessionmaker(reading, expire_on_commit=False)
        snapshot = engine.execution_options(**_SNAPSHOT[engine.name])
        self._snapshots = sessionmaker(snapshot, expire_on_commit=False)

    def transaction(self) -> AbstractContextManager[Session]:
        """Commits at the end of the block; rolls back if it raises."""
        return self._sessions.begin()

    def connection(self) -> AbstractContextManager[Connection]:
        """Like `transaction`, without the ORM: half the cost of the workers' most frequent statements."""
        return self.engine.begin()

    def reading(self) -> AbstractContextManager[Session]:
        """For SELECTs only; on SQLite it never waits for a writer.

        On PostgreSQL each statement sees everything committed before the statement.
        """
        return self._readers.begin()

    def snapshot(self) -> AbstractContextManager[Session]:
        """Like `reading`, but all SELECTs see the same moment."""
        return self._snapshots.begin()


def connect(settings: Settings) -> Database:
    """The deployment's database."""
    return Database(make_engine(settings))


def lock_tenant(session: Session, tenant: str) -> None:
    """Lock a tenant until the transaction ends, for changes that depend on what was read."""
    _lock(session, tenant)


def lock_request(session: Session, tenant: str, identity: str) -> None:
    """Make a repeated request wait for the first one. Lock it before the tenant."""
    _lock(session, tenant, identity)


def _lock(session: Session, *names: str) -> None:
    """Take an advisory lock on PostgreSQL. On SQLite, BEGIN IMMEDIATE already admits only one writer."""
    if is_postgresql(session):
        digest = hashlib.sha256("\n".join(names).encode()).digest()
        session.execute(_LOCK, {"number": int.from_bytes(digest[:8], signed=True)})


def storable(value: Any) -> Any:
    """`value` without NUL characters and lone surrogates, which models write and PostgreSQL refuses."""
    if isinstance(value, str):
        readable = value.replace("\x00", "\ufffd")
        return readable.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value
