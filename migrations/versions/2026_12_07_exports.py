"""Exports: rows of the queue that merge a job's weights into one model, and no fine-tuning jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_12_07_exports"
down_revision: str = "2026_12_06_helpers"
branch_labels: None = None
depends_on: None = None

COUNTS = "ix_jobs_counts"
COUNTED = ["state", "pool", "attempt", "fence"]
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
IS_JOB = sa.text("probe IS NULL AND export IS NULL")
IS_NO_PROBE = sa.text("probe IS NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("export", DOCUMENT, nullable=True))
    op.drop_index(COUNTS, table_name="jobs")
    op.create_index(COUNTS, "jobs", COUNTED, postgresql_where=IS_JOB, sqlite_where=IS_JOB)


def downgrade() -> None:
    op.drop_index(COUNTS, table_name="jobs")
    op.create_index(COUNTS, "jobs", COUNTED, postgresql_where=IS_NO_PROBE, sqlite_where=IS_NO_PROBE)
    op.drop_column("jobs", "export")
