"""Tables that only operators look at. Boundary: columns and indexes only."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base


class WorkerHelper(Base):
    """A helper of the workers of one pool on one host, and when it last completed a round."""

    __tablename__ = "worker_helpers"
    host: Mapped[str] = mapped_column(String(128), primary_key=True)
    pool: Mapped[str] = mapped_column(String(64), primary_key=True)
    helper: Mapped[str] = mapped_column(String(32), primary_key=True)
    seen_at: Mapped[float] = mapped_column(default=db_now())
