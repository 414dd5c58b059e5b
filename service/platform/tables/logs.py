"""The table of jobs' logs."""

from sqlalchemy import ForeignKey, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base


class LogPiece(Base):
    """Consecutive lines of one process of a job (`jobs/progress/logs.py`)."""

    __tablename__ = "job_logs"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    """Number of its last line in the job's log; the first line has number 1."""
    num_lines: Mapped[int]
    end_bytes: Mapped[int]
    """Size of the job's log up to the end of this piece, including dropped bytes."""
    attempt: Mapped[int]
    rank: Mapped[int | None]
    """None: the process that starts the ranks of a cluster."""
    created_at: Mapped[float] = mapped_column(default=db_now())
    text: Mapped[str] = mapped_column(Text)
    """The lines, separated by line feeds."""
