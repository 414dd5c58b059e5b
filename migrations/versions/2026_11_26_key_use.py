"""When each key was last used."""

import sqlalchemy as sa
from alembic import op

revision: str = "2026_11_26_key_use"
down_revision: str | None = "2026_11_26_shares"


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("last_used_at", sa.Double()))


def downgrade() -> None:
    op.drop_column("api_keys", "last_used_at")
