"""Webhook endpoints and what is sent to them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_11_30_webhooks"
down_revision: str = "2026_11_30_audit"
branch_labels: None = None
depends_on: None = None

DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
WAITING = sa.text("due_at IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        _text("id", 64),
        _text("tenant", 64),
        _text("name", 128),
        _text("url", 2048),
        _text("event_types", 256),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        _text("disabled_reason", 256, nullable=True),
        _text("secret", 128),
        _text("previous_secret", 128, nullable=True),
        _seconds("previous_secret_until", nullable=True),
        _seconds("created_at"),
        _seconds("updated_at"),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant"])
    op.create_table(
        "webhook_deliveries",
        *(_text(name, 64) for name in ("id", "endpoint_id", "tenant", "event_id", "event_type", "job_id")),
        _seconds("created_at"),
        _text("state", 16),
        _seconds("due_at", nullable=True),
        sa.Column("claim", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("attempts", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    log = ["endpoint_id", "created_at", "id"]
    op.create_index("ix_webhook_deliveries_log", "webhook_deliveries", log)
    waiting: dict[str, Any] = {"postgresql_where": WAITING, "sqlite_where": WAITING}
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["due_at"], **waiting)


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_endpoints")


def _text(name: str, length: int, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _seconds(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=nullable)
