"""The index in which `/metrics` counts jobs."""

from __future__ import annotations

from alembic import op

revision: str = "2026_11_30_counts"
down_revision: str = "2026_11_30_webhooks"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    op.create_index("ix_jobs_counts", "jobs", ["state", "pool", "attempt", "fence"])


def downgrade() -> None:
    op.drop_index("ix_jobs_counts", table_name="jobs")
