"""Keys, files, jobs with their history and results, idempotency, audit."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "2026_11_20_initial"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None

DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TABLES = (
    "api_keys",
    "files",
    "jobs",
    "job_events",
    "metrics",
    "rollouts",
    "checkpoints",
    "artifacts",
    "idempotency_keys",
    "audit",
)


def upgrade() -> None:
    _create_keys_and_files()
    _create_jobs()
    _create_history()
    _create_results()
    _create_bookkeeping()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _seconds(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _document(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, DOCUMENT, nullable=nullable)


def _create_keys_and_files() -> None:
    op.create_table(
        "api_keys",
        _text("public_id", 16),
        _text("tenant", 64),
        _text("secret_sha256", 64),
        _text("name", 128),
        _document("scopes"),
        _seconds("created_at"),
        _seconds("expires_at", nullable=True),
        _seconds("revoked_at", nullable=True),
        sa.PrimaryKeyConstraint("public_id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])
    op.create_table(
        "files",
        _text("id", 64),
        _text("tenant", 64),
        _text("filename", 512),
        _text("purpose", 32),
        _int("num_bytes"),
        _text("sha256", 64),
        _text("storage_key", 512),
        _seconds("created_at"),
        _seconds("expires_at", nullable=True),
        _seconds("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_created_at", "files", ["tenant", "created_at"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        *_identity_columns(),
        *_request_columns(),
        *_lease_columns(),
        *_progress_columns(),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("fine_tuned_model", name="uq_jobs_fine_tuned_model"),
    )
    queued, leased = sa.text("state = 'queued'"), sa.text("lease_expires_at IS NOT NULL")
    op.create_index(
        "ix_jobs_claim",
        "jobs",
        ["pool", sa.text("priority DESC"), "created_at"],
        postgresql_where=queued,
        sqlite_where=queued,
    )
    op.create_index(
        "ix_jobs_leases", "jobs", ["lease_expires_at"], postgresql_where=leased, sqlite_where=leased
    )
    op.create_index("ix_jobs_tenant", "jobs", ["tenant", "created_at", "id"])


def _identity_columns() -> list[sa.Column[Any]]:
    return [
        _text("id", 64),
        _text("tenant", 64),
        _text("state", 16),
        _text("pool", 64),
        _int("priority"),
        _seconds("created_at"),
        _seconds("started_at", nullable=True),
        _seconds("finished_at", nullable=True),
    ]


def _request_columns() -> list[sa.Column[Any]]:
    return [
        _text("model", 256),
        _text("training_file", 64),
        _text("validation_file", 64, nullable=True),
        _text("suffix", 64, nullable=True),
        _int("seed"),
        _document("metadata", nullable=True),
        _document("resources"),
        _document("method"),
        _document("warnings"),
    ]


def _lease_columns() -> list[sa.Column[Any]]:
    return [
        _int("fence"),
        _int("attempt"),
        _int("failures"),
        _text("lease_owner", 128, nullable=True),
        _seconds("lease_expires_at", nullable=True),
        _seconds("not_before"),
        _seconds("last_woken_at"),
    ]


def _progress_columns() -> list[sa.Column[Any]]:
    return [
        _text("phase", 32),
        _int("step"),
        _int("total_steps"),
        _int("checkpoint_step"),
        _int("engine_sequence"),
        _int("event_sequence"),
        _int("trained_tokens", nullable=True),
        _document("evaluation"),
        _text("fine_tuned_model", 512, nullable=True),
        _document("failure", nullable=True),
    ]


def _create_history() -> None:
    op.create_table(
        "job_events",
        _text("job_id", 64),
        _int("sequence"),
        _seconds("created_at"),
        _text("level", 8),
        _text("type", 16),
        _text("message"),
        _document("data"),
        _int("fence"),
        _of_job("job_events"),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_job_events"),
    )
    op.create_table(
        "metrics",
        _text("job_id", 64),
        _int("step"),
        _document("values"),
        _of_job("metrics"),
        sa.PrimaryKeyConstraint("job_id", "step", name="pk_metrics"),
    )
    op.create_table(
        "rollouts",
        _text("job_id", 64),
        _text("split", 16),
        _int("step"),
        _int("position"),
        sa.Column("has_signal", sa.Boolean(), nullable=False),
        _document("data"),
        _of_job("rollouts"),
        sa.PrimaryKeyConstraint("job_id", "split", "step", "position", name="pk_rollouts"),
    )


def _create_results() -> None:
    op.create_table(
        "checkpoints",
        _text("id", 64),
        _text("job_id", 64),
        _int("step"),
        _int("fence"),
        _text("state_key", 512, nullable=True),
        _text("state_sha256", 64),
        _text("adapter_key", 512),
        _text("adapter_sha256", 64),
        _int("adapter_bytes"),
        _document("metrics"),
        _seconds("created_at"),
        _of_job("checkpoints"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
        sa.UniqueConstraint("job_id", "step", name="uq_checkpoints_job_id_step"),
    )
    op.create_table(
        "artifacts",
        _text("id", 64),
        _text("job_id", 64),
        _text("kind", 16),
        _int("step"),
        _int("fence"),
        _of_job("artifacts"),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("job_id", "kind", name="uq_artifacts_job_id_kind"),
    )
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id"])


def _create_bookkeeping() -> None:
    op.create_table(
        "idempotency_keys",
        _text("tenant", 64),
        _text("key", 256),
        _text("request_sha256", 64),
        _text("job_id", 64),
        _seconds("created_at"),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_request_sha256", "idempotency_keys", ["request_sha256"])
    row_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "audit",
        sa.Column("id", row_number, autoincrement=True, nullable=False),
        _seconds("created_at"),
        _text("tenant", 64),
        _text("key_id", 16),
        _text("action", 64),
        _text("object_id", 64),
        _text("request_id", 64),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id")
