"""Engine and sessions: one synchronous stack for the API and the worker, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.orm import Session, sessionmaker

from service.platform.direct import Direct, Driver
from service.settings import Settings

RESTED_SECONDS = 0.1
"""A pooled connection that was used later than so long ago is taken as alive, without asking it."""
RESTED_SINCE = "rested_since"
QUIET = {"hide_parameters": True}
"""An error's text holds its statement and not the data: it goes to the log."""
IDLE_SECONDS = 20
"""So long may a transaction do nothing on PostgreSQL: a process that is frozen inside one must not keep its
locks, or nobody could take its job over."""
LOCK_SECONDS = 10
"""So long a statement waits there for another one's lock."""


def make_engine(settings: Settings) -> Engine:
    """A pooled engine. SQLite: WAL, foreign keys, BEGIN IMMEDIATE so that writers queue, never deadlock.

    An error tells its statement without the values, among which may be a secret.
    """
    url = settings.sqlalchemy_url
    if url.startswith("sqlite"):
        settings.home.mkdir(parents=True, exist_ok=True)
        given = {"timeout": 30, "isolation_level": None}
        engine = create_engine(url, connect_args=given, json_deserializer=from_json, **QUIET)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=20,
        max_overflow=0,
        pool_timeout=5,
        pool_use_lifo=True,
        json_deserializer=from_json,
        connect_args={"connect_timeout": 5, "keepalives_idle": 10, "tcp_user_timeout": 20_000}
        | {"autocommit": True},  # as on SQLite, a transaction begins where we say so
        **QUIET,
    )
    event.listen(engine, "connect", _prepare_postgresql)
    event.listen(engine, "begin", _begin_postgresql)
    _ping_rested(engine)
    return engine


def _ping_rested(engine: Engine) -> None:
    """Asks a connection whether it is alive before it is used, but not again and again under load."""

    @event.listens_for(engine, "checkin")
    def note(_connection: Any, record: Any) -> None:
        record.info[RESTED_SINCE] = monotonic()

    @event.listens_for(engine, "checkout")
    def ping(connection: Any, record: Any, _fairy: Any) -> None:
        since = record.info.get(RESTED_SINCE)
        if since is None or monotonic() - since < RESTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error  # the server was away: none of the pool's is alive


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    connection.execute(
        f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; SET lock_timeout = '{LOCK_SECONDS}s'"
    )


def _begin_sqlite(connection: Connection) -> None:
    mode = "DEFERRED" if connection.get_execution_options().get("grpo_read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


def _begin_postgresql(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _of_statements(engine: Engine) -> Engine:
    """The same connections for statements that are transactions of their own.

    On PostgreSQL there is nothing to begin and nothing to roll back then, and no listener to ask.
    """
    if engine.dialect.name != "postgresql":
        return engine.execution_options(grpo_read_only=True)
    given = {"json_deserializer": from_json, "skip_autocommit_rollback": True}
    return create_engine(engine.url, pool=engine.pool, **given, **QUIET)


Executor = Session | Connection | Direct
"""What runs statements that need no ORM."""


def is_postgresql(executor: Executor) -> bool:
    bound = executor.get_bind() if isinstance(executor, Session) else executor
    return bound.dialect.name == "postgresql"


class Database:
    """Hands out sessions; one `with database.transaction() as session` is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        single = _of_statements(engine)
        self._driver = Driver(single) if engine.dialect.name == "postgresql" else None
        self._readers = sessionmaker(single, expire_on_commit=False)
        self._scanners = sessionmaker(engine.execution_options(grpo_read_only=True), expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Commits at the end of the block, rolls back where it raises."""
        with self._sessions() as session, session.begin():
            yield session

    @contextmanager
    def statement(self) -> Iterator[Session]:
        """For one statement that is a transaction of its own: on PostgreSQL one round trip and not three."""
        is_postgresql = self.engine.dialect.name == "postgresql"
        with self.reading() if is_postgresql else self.transaction() as session:
            yield session

    @contextmanager
    def direct(self) -> Iterator[Connection | Direct]:
        """As `statement`, for those that are built once and need no ORM: a third of the cost."""
        with self._driver.connect() if self._driver else self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """For SELECTs only; on SQLite it never waits for a writer.

        On PostgreSQL each statement sees what is committed when it begins, as in any transaction there, but
        BEGIN and COMMIT cost no round trips.
        """
        with self._readers() as session, session.begin():
            yield session

    @contextmanager
    def scanning(self) -> Iterator[Session]:
        """For SELECTs of many rows, which come through a cursor: on PostgreSQL that needs a transaction."""
        with self._scanners() as session, session.begin():
            yield session


def connect(settings: Settings) -> Database:
    """The deployment's database."""
    return Database(make_engine(settings))
