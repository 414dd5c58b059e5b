"""Tables of models that answer chat requests, and of the processes that load them."""

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base, Document


class ModelServer(Base):
    """A model that is wanted, loading or served. The row is deleted when the model is unloaded."""

    __tablename__ = "model_servers"
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Digest of the weights; equal for two names of the same model."""
    tenant: Mapped[str] = mapped_column(String(64))
    """Tenant of the newest request, as which the worker finds the weights of `model`."""
    model: Mapped[str] = mapped_column(String(512))
    wanted_at: Mapped[float] = mapped_column(default=db_now())
    """Renewed while a request waits for the model."""
    fence: Mapped[int] = mapped_column(default=0)
    """Grows with each claim; a write under an older fence changes nothing."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    """The worker that loads or serves it."""
    lease_expires_at: Mapped[float | None]
    address: Mapped[str | None] = mapped_column(String(256))
    """URL of the server once the model is loaded."""
    secret: Mapped[str | None] = mapped_column(String(64))
    """Bearer secret of the server."""
    refusal: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """`grpo_engine.chat.protocol.Refusal`: why the last server could not start, or has ended."""


class ChatWorker(Base):
    """A process that loads models."""

    __tablename__ = "chat_workers"
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    is_training: Mapped[bool]
    """Whether its machine's GPUs are used by a job."""
    seen_at: Mapped[float] = mapped_column(default=db_now())
