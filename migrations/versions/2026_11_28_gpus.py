"""How many GPUs jobs need and workers' machines have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_28_gpus"
down_revision: str = "2026_11_27_capabilities"
branch_labels: None = None
depends_on: None = None

CLAIM = "ix_jobs_claim"
QUEUED = sa.text("state = 'queued'")
ORDER: list[str | sa.TextClause] = ["pool", sa.text("priority DESC"), "created_at"]


def upgrade() -> None:
    op.add_column("jobs", sa.Column("required_gpus", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("worker_hosts", sa.Column("gpus", sa.BigInteger(), nullable=False, server_default="0"))
    _index([*ORDER, "required_gpus"])


def downgrade() -> None:
    _index(ORDER)
    op.drop_column("worker_hosts", "gpus")
    op.drop_column("jobs", "required_gpus")


def _index(columns: list[str | sa.TextClause]) -> None:
    """The claim's index, made again over these columns."""
    op.drop_index(CLAIM, table_name="jobs")
    op.create_index(CLAIM, "jobs", columns, postgresql_where=QUEUED, sqlite_where=QUEUED)
