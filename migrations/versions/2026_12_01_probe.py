"""Probes, which are rows of the queue and no fine-tuning jobs; what jobs should cost and what they do."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_12_01_probe"
down_revision: str = "2026_11_30_counts"
branch_labels: None = None
depends_on: None = None

COLUMNS = ("probe", "estimate", "actual")
COUNTS = "ix_jobs_counts"
COUNTED = ["state", "pool", "attempt", "fence"]
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
IS_JOB = sa.text("probe IS NULL")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("jobs", sa.Column(name, DOCUMENT, nullable=True))
    op.drop_index(COUNTS, table_name="jobs")
    op.create_index(COUNTS, "jobs", COUNTED, postgresql_where=IS_JOB, sqlite_where=IS_JOB)


def downgrade() -> None:
    op.drop_index(COUNTS, table_name="jobs")
    op.create_index(COUNTS, "jobs", COUNTED)
    for name in COLUMNS:
        op.drop_column("jobs", name)
