"""Tables of the machines that run jobs, and of their helper processes."""

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base


class WorkerHost(Base):
    """A machine with workers of a pool, and its capabilities."""

    __tablename__ = "worker_hosts"
    host: Mapped[str] = mapped_column(String(128), primary_key=True)
    pool: Mapped[str] = mapped_column(String(64), primary_key=True)
    capabilities: Mapped[str] = mapped_column(String(256))
    """Sorted, separated by spaces."""
    gpus: Mapped[int] = mapped_column(default=0)
    gpu_memory_gb: Mapped[int] = mapped_column(default=0)
    """Memory of the smallest GPU."""
    seen_at: Mapped[float] = mapped_column(default=db_now())


class WorkerHelper(Base):
    """A helper of the workers of one pool on one host, and when it last completed a round."""

    __tablename__ = "worker_helpers"
    host: Mapped[str] = mapped_column(String(128), primary_key=True)
    pool: Mapped[str] = mapped_column(String(64), primary_key=True)
    helper: Mapped[str] = mapped_column(String(32), primary_key=True)
    seen_at: Mapped[float] = mapped_column(default=db_now())
