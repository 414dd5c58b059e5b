"""Shards of a checkpoint that are stored beside its archive."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_11_25_checkpoint_shards"
down_revision: str | None = "2026_11_23_initial"

DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    # has a default, because some workers still run the previous version
    op.add_column("checkpoints", sa.Column("shards", DOCUMENT, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("checkpoints", "shards")
