"""Heartbeats of a worker's helpers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "2026_12_06_helpers"
down_revision: str = "2026_12_05_samples"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    op.create_table(
        "worker_helpers",
        sa.Column("host", sa.String(128), nullable=False),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("helper", sa.String(32), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("host", "pool", "helper", name="pk_worker_helpers"),
    )


def downgrade() -> None:
    op.drop_table("worker_helpers")
