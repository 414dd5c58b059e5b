"""Leases on rows: which process works on a row, until when, and under which claim number.

A claim increments the row's number and sets when the lease expires. Each later write of the claimant names
its number: 0 rows mean that another process has claimed the row since, and nothing changes. Only the
database's clock decides.
Boundary: conditions and UPDATEs over the columns that every leased table has. Which rows are due, and the
states of a row, belong to the module of the table.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    SQLColumnExpression,
    Table,
    Update,
    and_,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session

from service.platform.clock import db_now
from service.platform.tables.core import Base

NOW = select(db_now()).scalar_subquery()
"""The clock as a subquery, read once per statement: no index is used to compare with a volatile function."""


@dataclass(frozen=True)
class Leases:
    """The leases of one table."""

    table: type[Base] | Table
    key: tuple[SQLColumnExpression[Any], ...]
    """Columns of the primary key."""
    number: SQLColumnExpression[int]
    """Fencing number, which grows with each claim."""
    expires_at: SQLColumnExpression[float | None]
    active: ColumnElement[bool]
    """Condition on rows that can be held; `true()` if all can."""

    @property
    def has_expired(self) -> ColumnElement[bool]:
        return and_(self.active, self.expires_at <= NOW)

    def is_held(self, *key: Any, number: Any) -> ColumnElement[bool]:
        """Condition under which the claim with this number may still write."""
        ours = (column == value for column, value in zip(self.key, key, strict=True))
        return and_(self.active, self.number == number, *ours)

    def claim(self, candidates: Select[*tuple[Any, ...]], seconds: Any, **values: Any) -> Update:
        """Claim the first of `candidates` (a query of keys) that no other transaction has locked."""
        first = candidates.limit(literal_column("1"))  # a parameter here would prevent the reuse of plans
        locked = first.with_for_update(skip_locked=True, of=[*candidates.selected_columns])
        # the locked row is due; if the condition were repeated, the planner might search again
        found = tuple_(*self.key) == locked.correlate(None).scalar_subquery()
        new = {self.number: self.number + 1, self.expires_at: db_now() + seconds}
        return update(self.table).where(found).values({**new, **values})

    def renew(self, condition: ColumnElement[bool], seconds: Any, **values: Any) -> Update:
        """Extend the leases of the rows that meet the condition."""
        new = {self.expires_at: db_now() + seconds}
        return update(self.table).where(condition).values({**new, **values})

    def write(self, session: Session, *key: Any, number: int, **values: Any) -> bool:
        """Set columns of a row that is held. False: another process has claimed it; nothing is written."""
        written = update(self.table).where(self.is_held(*key, number=number)).values(**values)
        found = session.execute(written.returning(*self.key), execution_options=QUIET)
        return found.one_or_none() is not None


QUIET = {"synchronize_session": False}
"""Execution options for UPDATEs that change no row loaded in their session."""
