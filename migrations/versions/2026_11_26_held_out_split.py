"""The split of a training file, and the number of an uploaded file's rows."""

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_26_held_out_split"
down_revision: str | None = "2026_11_25_checkpoint_shards"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("validation_split", sa.Double()))
    op.add_column("files", sa.Column("num_rows", sa.BigInteger()))
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE jobs ALTER COLUMN validation_split SET STATISTICS 10")  # as its other columns


def downgrade() -> None:
    op.drop_column("files", "num_rows")
    op.drop_column("jobs", "validation_split")
