"""Migrated PostgreSQL databases for tests: one that a test has left is emptied and used again."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.servers import Postgres

END_OTHERS = """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
SCHEMA = """SELECT md5(string_agg(part, ' ')) FROM (
    SELECT version_num AS part FROM alembic_version
    UNION ALL SELECT concat(setconfig) FROM pg_db_role_setting WHERE setdatabase =
        (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL SELECT concat(relname, oid) FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT concat(attname, attrelid, xmin) FROM pg_attribute WHERE attrelid >= 16384 AND attnum > 0
    UNION ALL SELECT concat(conname, xmin) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat(tgname, tgenabled, xmin) FROM pg_trigger
    UNION ALL SELECT concat(proname, xmin) FROM pg_proc WHERE oid >= 16384
    ORDER BY 1) AS parts"""
"""Changes with every ALTER, CREATE and DROP."""
EMPTY = """DO $$ DECLARE name regclass; BEGIN
    SET LOCAL session_replication_role = replica;  -- without triggers and foreign keys
    FOR name IN SELECT oid FROM pg_class
        WHERE oid >= 16384 AND relkind = 'r' AND relname <> 'alembic_version'
    LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
    PERFORM setval(oid, 1, false) FROM pg_class WHERE oid >= 16384 AND relkind = 'S';
END $$"""


class DatabasePool:
    """Copies of a template, of which usually one is used: to empty it takes 2 ms, another copy 35 ms."""

    def __init__(self, server: Postgres, template: str) -> None:
        self.server = server
        self.template = template
        self._numbers = itertools.count(1)
        self._empty: list[str] = []
        self._connections: dict[str, psycopg.Connection] = {}
        """Kept open: a new connection takes longer than all its statements."""
        with self._connect(template) as connection:
            self._schema = connection.execute(SCHEMA).fetchone()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    @contextmanager
    def database(self) -> Iterator[str]:
        """URL of a migrated, empty database. If its schema is changed meanwhile, it is not used again."""
        name = self._empty.pop() if self._empty else self._copy()
        yield self.server.url_of(name)
        if self._clear(name):
            self._empty.append(name)
        else:
            self.server.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _copy(self) -> str:
        name = f"grpo_{next(self._numbers)}"
        self.server.copy(self.template, name)
        return name

    def _clear(self, name: str) -> bool:
        """Delete all rows, and return True, if the schema is still the template's."""
        connection = self._connections.pop(name, None)
        try:
            if connection is None or not _is_alive(connection):
                connection = self._connect(name)
            connection.execute(END_OTHERS)
            is_same: bool = connection.execute(SCHEMA).fetchone() == self._schema
            if is_same:
                connection.execute(EMPTY)
                self._connections[name] = connection
        except psycopg.ProgrammingError:  # a table is missing
            is_same = False
        if not is_same and connection is not None:
            connection.close()
        return is_same

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(self.server.url_of(name), autocommit=True, connect_timeout=5)


def _is_alive(connection: psycopg.Connection) -> bool:
    """Whether the server was not restarted meanwhile."""
    try:
        connection.execute("")
    except psycopg.OperationalError:
        connection.close()
        return False
    return True
