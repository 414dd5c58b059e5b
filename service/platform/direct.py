"""Statements that workers ask all the time, run by PostgreSQL's driver itself.

SQLAlchemy's execution of a statement costs more than twice the driver's. What it knows of one (its SQL, how
values are converted) is asked of it once and kept; errors are told as it tells them.
Boundary: statements that are built once, each a transaction of its own, which answer one row at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Dialect, Engine, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

Row = tuple[Any, ...]


class Answer(NamedTuple):
    """What a statement found, as `sqlalchemy.Result` hands it out."""

    row: Row | None

    def one_or_none(self) -> Any:
        return self.row


@dataclass(frozen=True, slots=True)
class Compiled:
    """A statement as the driver takes it."""

    sql: str
    constants: dict[str, Any]
    """Values that the statement brings itself, by their parameters' names."""
    conversions: tuple[tuple[str, Callable[[Any], Any]], ...]
    """Of the values that the driver does not take as they are."""

    @classmethod
    def of(cls, statement: Executable, dialect: Dialect) -> Compiled:
        made = cast(SQLCompiler, cast(Any, statement).compile(dialect=dialect))
        constants = {
            name: bind.effective_value for bind, name in made.bind_names.items() if not bind.required
        }
        found = (
            (name, bind.type.dialect_impl(dialect).bind_processor(dialect))
            for bind, name in made.bind_names.items()
        )
        conversions = tuple((name, convert) for name, convert in found if convert is not None)
        return cls(made.string, constants, conversions)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        values = {**self.constants, **given}
        for name, convert in self.conversions:
            values[name] = convert(values[name])
        return values


class Driver:
    """Hands out the connections of an engine whose statements are transactions of their own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.known: dict[Executable, Compiled] = {}

    @contextmanager
    def connect(self) -> Iterator[Direct]:
        with self.engine.connect() as connection:
            yield Direct(connection, self.known)


class Direct:
    """A connection; raises what SQLAlchemy would raise."""

    def __init__(self, connection: Connection, known: dict[Executable, Compiled]) -> None:
        self.dialect = connection.dialect
        self._connection = connection
        self._known = known

    def execute(self, statement: Executable, given: Any) -> Answer:
        """`given`: the statement's values by name."""
        compiled = self._known.get(statement)
        if compiled is None:
            compiled = self._known[statement] = Compiled.of(statement, self.dialect)
        driver: Any = self._connection.connection.driver_connection
        values = compiled.values(given)
        try:
            return Answer(driver.execute(compiled.sql, values).fetchone())
        except self.dialect.loaded_dbapi.Error as error:
            raise self._as_told(error, compiled.sql, values) from error

    def scalar(self, statement: Executable, given: Mapping[str, Any]) -> Any:
        """The row's first column; None where there is no row."""
        row = self.execute(statement, given).row
        return None if row is None else row[0]

    def _as_told(self, error: Exception, sql: str, values: dict[str, Any]) -> BaseException:
        """Its text holds no values, among which may be a secret; a lost connection goes back to nobody."""
        is_lost = self.dialect.is_disconnect(cast(Any, error), self._connection.connection, None)
        if is_lost:
            self._connection.invalidate(error)
        given: dict[str, Any] = {"hide_parameters": True, "connection_invalidated": is_lost}
        base = cast(Any, self.dialect.loaded_dbapi.Error)
        return DBAPIError.instance(sql, values, error, base, dialect=self.dialect, **given)
