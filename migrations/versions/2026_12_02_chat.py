"""Requests to talk to a model, their answers on the way, and who answers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_12_02_chat"
down_revision: str = "2026_12_01_probe"
branch_labels: None = None
depends_on: None = None

DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
WAITING = sa.text("state = 'waiting'")


def upgrade() -> None:
    op.create_table(
        "generations",
        _text("id", 64),
        _text("tenant", 64),
        _text("model", 512),
        sa.Column("ask", DOCUMENT, nullable=False),
        _text("state", 16),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        _text("lease_owner", 128, nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("num_chunks", sa.BigInteger(), nullable=False),
        sa.Column("usage", DOCUMENT, nullable=True),
        sa.Column("refusal", DOCUMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_generations"),
    )
    op.create_index("ix_generations_tenant", "generations", ["tenant"])
    waiting: dict[str, Any] = {"postgresql_where": WAITING, "sqlite_where": WAITING}
    op.create_index("ix_generations_waiting", "generations", ["created_at"], **waiting)
    op.create_table(
        "generation_chunks",
        _text("generation_id", 64),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("pieces", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["generation_id"],
            ["generations.id"],
            name="fk_generation_chunks_generation_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("generation_id", "sequence", name="pk_generation_chunks"),
    )
    op.create_table(
        "chat_workers",
        _text("name", 128),
        sa.Column("is_training", sa.Boolean(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_chat_workers"),
    )


def downgrade() -> None:
    op.drop_table("chat_workers")
    op.drop_table("generation_chunks")
    op.drop_table("generations")


def _text(name: str, length: int, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length), nullable=nullable)
