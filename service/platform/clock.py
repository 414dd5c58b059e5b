"""The database's clock as Unix seconds. Leases depend on it alone; a worker's clock may be an hour off."""

from typing import Any

from sqlalchemy import Double, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import GenericFunction


class db_now(GenericFunction[float]):
    """Wall-clock seconds at this statement, not at the transaction's start."""

    type = Double()
    inherit_cache = True
    name = "db_now"


@compiles(db_now, "postgresql")
def _postgresql(element: db_now, compiler: Any, **kwargs: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


@compiles(db_now, "sqlite")
def _sqlite(element: db_now, compiler: Any, **kwargs: Any) -> str:
    # unixepoch('subsec') is NULL before SQLite 3.42, and a NULL lease never expires.
    return "((julianday('now') - 2440587.5) * 86400.0)"


_NOW = select(db_now())


def read_clock(session: Session) -> float:
    """The time by the database's clock."""
    return session.scalars(_NOW).one()
