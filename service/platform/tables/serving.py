"""The tables of requests to talk to a model: what was asked, what has come back, and who answers.

Nothing here is kept: a row is deleted with its answer's delivery, or after minutes.
Boundary: columns and indexes only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base, Document


class GenerationState(StrEnum):
    """A request that nobody waits for any more has no state: its row is gone."""

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
    ask: Mapped[dict[str, Any]] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Ask`."""
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(default=db_now())
    fence: Mapped[int] = mapped_column(default=0)
    """Grows with each claim; a write under an older fence changes nothing."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[float | None]
    num_chunks: Mapped[int] = mapped_column(default=0)
    usage: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Usage`, of a request that is done."""
    refusal: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Refusal`, of one that failed."""

    __table_args__ = (
        Index(
            "ix_generations_waiting",
            "created_at",
            postgresql_where=text("state = 'waiting'"),
            sqlite_where=text("state = 'waiting'"),
        ),
    )


class GenerationChunk(Base):
    """What came back at once."""

    __tablename__ = "generation_chunks"
    generation_id: Mapped[str] = mapped_column(
        ForeignKey("generations.id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True)
    """From 1, without gaps."""
    pieces: Mapped[list[Any]] = mapped_column(Document)
    """`grpo_engine.serve.protocol.Piece`s."""


class ChatWorker(Base):
    """A process that answers, and whether it may at the moment."""

    __tablename__ = "chat_workers"
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    is_training: Mapped[bool]
    """Its machine's GPUs belong to a job now."""
    seen_at: Mapped[float] = mapped_column(default=db_now())
