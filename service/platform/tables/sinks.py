"""The table of sinks: how many of each job's metrics were sent to each of its sinks."""

from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base, Document, Job, partial_index


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
    """When it is due; while claimed, when the lease expires. None: never."""
    claim: Mapped[int] = mapped_column(default=0)
    """Grows with each claim; writes under an older claim change nothing."""
    failures: Mapped[int] = mapped_column(default=0)
    """Number of consecutive failures."""
    step: Mapped[int] = mapped_column(default=-1)
    """Last written step; -1: none."""
    reason: Mapped[str] = mapped_column(String(512), default="")
    """Reason of the last failure."""

    __table_args__ = (partial_index("ix_job_sinks_due", ["due_at"], where="due_at IS NOT NULL"),)


def sinks_of(job: Job) -> list[JobSink]:
    """The rows of a new job."""
    found = ((one["type"], one.get(one["type"], {})) for one in job.integrations or ())
    return [JobSink(job_id=job.id, type=kind, settings=settings) for kind, settings in found]
