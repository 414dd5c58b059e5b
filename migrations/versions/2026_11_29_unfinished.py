"""Indexes over what is unfinished; renewing a lease no longer touches any index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_29_unfinished"
down_revision: str = "2026_11_28_gpus"
branch_labels: None = None
depends_on: None = None

LEASED = sa.text("lease_expires_at IS NOT NULL")
HELD = sa.text("state IN ('cancelling', 'pausing', 'running')")
UNFINISHED = sa.text("state IN ('cancelling', 'paused', 'pausing', 'queued', 'running')")


def upgrade() -> None:
    op.drop_index("ix_jobs_leases", table_name="jobs")
    _index("ix_jobs_held", ["id"], HELD)
    _index("ix_jobs_unfinished", ["tenant"], UNFINISHED)


def downgrade() -> None:
    op.drop_index("ix_jobs_unfinished", table_name="jobs")
    op.drop_index("ix_jobs_held", table_name="jobs")
    _index("ix_jobs_leases", ["lease_expires_at"], LEASED)


def _index(name: str, columns: list[str], where: sa.TextClause) -> None:
    op.create_index(name, "jobs", columns, postgresql_where=where, sqlite_where=where)
