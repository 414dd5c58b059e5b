"""The logs of jobs."""

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_26_job_logs"
down_revision: str | None = "2026_11_26_held_out_split"


def upgrade() -> None:
    op.create_table(
        "job_logs",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("end_bytes", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_logs_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "sequence", name=op.f("pk_job_logs")),
    )


def downgrade() -> None:
    op.drop_table("job_logs")
