"""Cursor pages of rows, newest first."""

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, select, tuple_
from sqlalchemy.orm import Session

from service.platform.errors import NotFound
from service.platform.tables.core import Base

Row = TypeVar("Row", bound=Base)


def newest_page(
    session: Session, table: type[Row], condition: ColumnElement[bool], *, after: str | None, limit: int
) -> list[Row]:
    """The rows that meet the condition, newest first, after the one with id `after`.

    One more than `limit` if there are more. Raises NotFound if `after` is not the id of such a row.
    """
    columns: Any = table
    query = select(table).where(condition)
    if after is not None:
        last: Any = session.scalar(query.where(columns.id == after))
        if last is None:
            raise unknown_cursor(after)
        query = query.where(tuple_(columns.created_at, columns.id) < (last.created_at, last.id))
    newest_first = (columns.created_at.desc(), columns.id.desc())
    return list(session.scalars(query.order_by(*newest_first).limit(limit + 1)))


def unknown_cursor(after: str) -> NotFound:
    """The error for an `after` that is not in this list: a 404, as for any other unknown id."""
    reason = f"after: {after!r} is not the id of an item of this list"
    return NotFound(f"{reason}. If it was deleted, read the list again from the start.", param="after")
