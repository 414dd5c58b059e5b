"""A database whose clock is a row that the test sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session

from service.platform import clock
from service.platform.db import Database


@contextmanager
def virtual_clock(database: Database) -> Iterator[None]:
    """Within the block `db_now` is the table `virtual_clock`, which starts at 0."""

    def read(_element: clock.db_now, _compiler: Any, **_kwargs: Any) -> str:
        return "(SELECT seconds FROM virtual_clock)"

    with database.transaction() as session:
        session.execute(text("CREATE TABLE virtual_clock (seconds double precision NOT NULL)"))
        session.execute(text("INSERT INTO virtual_clock VALUES (0)"))
    for dialect in ("sqlite", "postgresql"):
        compiles(clock.db_now, dialect)(read)
    try:
        yield
    finally:
        compiles(clock.db_now, "sqlite")(clock._sqlite)
        compiles(clock.db_now, "postgresql")(clock._postgresql)


def set_clock(session: Session, now: float) -> None:
    session.execute(text("UPDATE virtual_clock SET seconds = :now"), {"now": now})
