"""What users write about a job: its name, notes and tags, and whether it is archived."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_11_26_job_names"
down_revision: str | None = "2026_11_26_job_logs"

DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
STATISTICS_TARGET = 10
"""The same target as for the table's other columns (`2026_11_23_initial.py`)."""


def upgrade() -> None:
    # have defaults, because some processes still run the previous version
    columns: tuple[sa.Column[Any], ...] = (
        sa.Column("name", sa.String(128)),
        sa.Column("notes", sa.Text()),
        sa.Column("tags", DOCUMENT, nullable=False, server_default="[]"),
        sa.Column("archived", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for column in columns:
        op.add_column("jobs", column)
        if is_postgresql:
            op.execute(f'ALTER TABLE jobs ALTER COLUMN "{column.name}" SET STATISTICS {STATISTICS_TARGET}')


def downgrade() -> None:
    for name in ("archived", "tags", "notes", "name"):
        op.drop_column("jobs", name)
