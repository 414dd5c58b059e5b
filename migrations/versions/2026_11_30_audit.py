"""The audit trail only grows: the database refuses to change or remove a row of it."""

from __future__ import annotations

from alembic import op

revision: str = "2026_11_30_audit"
down_revision: str = "2026_11_29_unfinished"
branch_labels: None = None
depends_on: None = None

REFUSAL = "audit rows are never changed or removed"
SQLITE = """
    CREATE TRIGGER audit_no_{event} BEFORE {event} ON audit
    BEGIN SELECT RAISE(ABORT, '{refusal}'); END
"""
FUNCTION = """
    CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION '{refusal}'; END $$
"""
POSTGRESQL = """
    CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    EXECUTE FUNCTION refuse_audit_change()
"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(FUNCTION.format(refusal=REFUSAL))
        op.execute(POSTGRESQL)
        return
    for event in ("update", "delete"):
        op.execute(SQLITE.format(event=event, refusal=REFUSAL))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_append_only ON audit")
        op.execute("DROP FUNCTION refuse_audit_change")
        return
    for event in ("update", "delete"):
        op.execute(f"DROP TRIGGER audit_no_{event}")
