"""Tables of chat requests. Rows are deleted when the request is closed, or after half an hour."""

from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base, Document, partial_index


class GenerationState(StrEnum):
    """A closed request has no state: its row is deleted."""

    WAITING = "waiting"
    GENERATING = "generating"
    """A worker holds its lease."""
    DONE = "done"
    FAILED = "failed"


class Generation(Base):
    """One request."""

    __tablename__ = "generations"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    model: Mapped[str] = mapped_column(String(512))
    request: Mapped[dict[str, Any]] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Generate`."""
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(default=db_now())
    fence: Mapped[int] = mapped_column(default=0)
    """Grows with each claim; a write under an older fence changes nothing."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[float | None]
    num_chunks: Mapped[int] = mapped_column(default=0)
    usage: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Usage`, if done."""
    refusal: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Refusal`, if failed."""

    __table_args__ = (partial_index("ix_generations_waiting", ["created_at"], where="state = 'waiting'"),)


class GenerationChunk(Base):
    """Pieces of an answer that were stored at once."""

    __tablename__ = "generation_chunks"
    generation_id: Mapped[str] = mapped_column(
        ForeignKey("generations.id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True)
    """Number of the chunk, from 1, without gaps."""
    pieces: Mapped[list[Any]] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Piece`s."""


class ChatWorker(Base):
    """A process that answers requests."""

    __tablename__ = "chat_workers"
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    is_training: Mapped[bool]
    """Whether its machine's GPUs are used by a job."""
    seen_at: Mapped[float] = mapped_column(default=db_now())
