"""Keys that may only read one job: shared links."""

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_26_shares"
down_revision: str | None = "2026_11_26_job_names"

INDEX = "ix_api_keys_job_id"
REFERENCE = "fk_api_keys_job_id_jobs"


def upgrade() -> None:
    # a batch, because SQLite adds constraints only by copying the table
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("job_id", sa.String(64), nullable=True))
        table.create_foreign_key(op.f(REFERENCE), "jobs", ["job_id"], ["id"])
    op.create_index(op.f(INDEX), "api_keys", ["job_id"])


def downgrade() -> None:
    op.drop_index(op.f(INDEX), "api_keys")
    op.execute("DELETE FROM api_keys WHERE job_id IS NOT NULL")  # they would read everything
    with op.batch_alter_table("api_keys") as table:
        table.drop_constraint(op.f(REFERENCE), type_="foreignkey")
        table.drop_column("job_id")
