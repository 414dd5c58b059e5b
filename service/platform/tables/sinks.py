"""The sinks' table: how far each job's metrics have got into each of its sinks.

Boundary: columns and indexes only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base, Document, Job


class JobSink(Base):
    """One sink of one job."""

    __tablename__ = "job_sinks"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    type: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`wandb`, `tensorboard` or `mlflow`."""
    settings: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    state: Mapped[str] = mapped_column(String(16), default="pending")
    """`pending`, `done` or `failed` (given up)."""
    due_at: Mapped[float | None] = mapped_column(default=db_now())
    """When it is looked after next; while somebody does, when another process may. None: never."""
    claim: Mapped[int] = mapped_column(default=0)
    """Grows each time it is taken up; what an older claim writes changes nothing."""
    failures: Mapped[int] = mapped_column(default=0)
    """In a row."""
    step: Mapped[int] = mapped_column(default=-1)
    """Written up to here; -1: not begun."""
    reason: Mapped[str] = mapped_column(String(512), default="")
    """Of the newest failure."""

    __table_args__ = (
        Index(
            "ix_job_sinks_due",
            "due_at",
            postgresql_where=text("due_at IS NOT NULL"),
            sqlite_where=text("due_at IS NOT NULL"),
        ),
    )


def sinks_of(job: Job) -> list[JobSink]:
    """A new job's rows."""
    found = ((one["type"], one.get(one["type"], {})) for one in job.integrations or ())
    return [JobSink(job_id=job.id, type=kind, settings=settings) for kind, settings in found]
