"""PostgreSQL looks at the jobs' statistics after a thousand changes, however many jobs there were before.

Its default is a tenth of the table: after 300,000 finished jobs a queue that had been empty is planned as if
it still were, and each claim sorts all of it.
"""

from __future__ import annotations

from alembic import op

revision: str = "2026_12_04_analyze"
down_revision: str = "2026_12_03_sinks"
branch_labels: None = None
depends_on: None = None

SETTINGS = ("autovacuum_analyze_scale_factor", "autovacuum_analyze_threshold")


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE jobs SET ({SETTINGS[0]} = 0, {SETTINGS[1]} = 1000)")


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE jobs RESET ({', '.join(SETTINGS)})")
