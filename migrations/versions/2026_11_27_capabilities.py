"""What jobs need of a machine, and what workers' machines offer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_27_capabilities"
down_revision: str = "2026_11_20_initial"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    needed = sa.Column("required_capabilities", sa.String(128), nullable=False, server_default="")
    op.add_column("jobs", needed)
    op.create_table(
        "worker_hosts",
        sa.Column("host", sa.String(128), nullable=False),
        sa.Column("pool", sa.String(64), nullable=False),
        sa.Column("capabilities", sa.String(256), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("host", "pool", name="pk_worker_hosts"),
    )


def downgrade() -> None:
    op.drop_table("worker_hosts")
    op.drop_column("jobs", "required_capabilities")
