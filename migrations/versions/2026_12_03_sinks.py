"""What a job was asked for, kept for clones; where its metrics go beside this database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_12_03_sinks"
down_revision: str = "2026_12_02_chat"
branch_labels: None = None
depends_on: None = None

DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
WAITING = sa.text("due_at IS NOT NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("requested", DOCUMENT, nullable=True))
    op.add_column("jobs", sa.Column("integrations", DOCUMENT, nullable=True))
    op.create_table(
        "job_sinks",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("settings", DOCUMENT, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("claim", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(512), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "type", name="pk_job_sinks"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_sinks_job_id"),
    )
    waiting: dict[str, Any] = {"postgresql_where": WAITING, "sqlite_where": WAITING}
    op.create_index("ix_job_sinks_due", "job_sinks", ["due_at"], **waiting)


def downgrade() -> None:
    op.drop_table("job_sinks")
    op.drop_column("jobs", "integrations")
    op.drop_column("jobs", "requested")
