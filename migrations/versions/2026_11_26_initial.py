"""The whole schema."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql

revision: str = "2026_11_26_initial"
down_revision: str | None = None

DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ANALYZE_AFTER_ROWS = 1000
"""With the default, a tenth of the table, PostgreSQL would plan for an empty queue while it grows."""
STATISTICS_TARGET = 10
"""A small sample, because with the default of 100 an analysis takes 0.4 s of a core."""


def upgrade() -> None:
    _create_jobs()
    _create_keys_and_files()
    _create_history()
    _create_results()
    _create_bookkeeping_and_webhooks()
    _create_chat_and_workers()
    _forbid_audit_changes()
    if op.get_bind().dialect.name == "postgresql":
        _tune_statistics()


def downgrade() -> None:
    schema = sa.MetaData()
    schema.reflect(op.get_bind(), only=lambda name, _: name != "alembic_version")
    schema.drop_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_audit_change")


def _forbid_audit_changes() -> None:
    refusal = "audit rows are never changed or removed"
    if op.get_bind().dialect.name == "postgresql":
        function = "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql"
        op.execute(f"{function} AS $$ BEGIN RAISE EXCEPTION '{refusal}'; END $$")
        trigger = "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit"
        op.execute(f"{trigger} EXECUTE FUNCTION refuse_audit_change()")
        return
    for event in ("update", "delete"):
        body = f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        op.execute(f"CREATE TRIGGER audit_no_{event} BEFORE {event} ON audit {body}")


def _tune_statistics() -> None:
    settings = f"autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = {ANALYZE_AFTER_ROWS}"
    op.execute(f"ALTER TABLE jobs SET ({settings})")
    for column in inspect(op.get_bind()).get_columns("jobs"):
        op.execute(f'ALTER TABLE jobs ALTER COLUMN "{column["name"]}" SET STATISTICS {STATISTICS_TARGET}')


def _texts(*, nullable: bool = False, **lengths: int) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.String(length), nullable=nullable) for name, length in lengths.items()]


def _columns_of(kind: sa.types.TypeEngine[Any]) -> Callable[..., list[sa.Column[Any]]]:
    def columns(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
        return [sa.Column(name, kind, nullable=nullable) for name in names]

    return columns


_ints, _times, _documents = _columns_of(sa.BigInteger()), _columns_of(sa.Double()), _columns_of(DOCUMENT)


def _of_job(table: str, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id", ondelete=ondelete)


def _partial_index(name: str, table: str, columns: Sequence[str | sa.TextClause], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, postgresql_where=where, sqlite_where=where)


def _create_keys_and_files() -> None:
    op.create_table(
        "api_keys",
        *_texts(public_id=16, tenant=64, secret_sha256=64, name=128),
        *_documents("scopes"),
        *_times("created_at"),
        *_times("expires_at", "revoked_at", "last_used_at", nullable=True),
        *_texts(nullable=True, job_id=64),
        _of_job("api_keys"),
        sa.PrimaryKeyConstraint("public_id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])
    op.create_index("ix_api_keys_job_id", "api_keys", ["job_id"])
    op.create_table(
        "files",
        *_texts(id=64, tenant=64, filename=512, purpose=32, sha256=64, storage_key=512),
        *_ints("num_bytes"),
        *_ints("num_rows", nullable=True),
        *_times("created_at"),
        *_times("expires_at", "deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_created_at", "files", ["tenant", "created_at"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        *_texts(id=64, tenant=64, state=16, pool=64),
        *_ints("priority"),
        *_times("created_at", "not_before", "last_woken_at"),
        *_times("started_at", "finished_at", "lease_expires_at", nullable=True),
        *_texts(model=512, training_file=64),
        *_texts(nullable=True, validation_file=64, suffix=64, name=128),
        sa.Column("notes", sa.Text(), nullable=True),
        *_times("validation_split", nullable=True),
        *_ints("seed"),
        *_documents("resources", "method", "warnings", "tags"),
        sa.Column("archived", sa.Boolean(), nullable=False),
        *_documents("metadata", "integrations", "requested", nullable=True),
        *_texts(required_capabilities=128),
        *_ints("required_gpus", "required_gpu_memory_gb"),
        *_ints("fence", "attempt", "failures"),
        *_texts(nullable=True, lease_owner=128),
        *_texts(phase=32),
        *_ints("step", "total_steps", "checkpoint_step", "engine_sequence", "event_sequence"),
        *_ints("trained_tokens", nullable=True),
        *_documents("evaluation"),
        *_texts(nullable=True, fine_tuned_model=512),
        *_documents("failure", "probe", "export", "estimate", "actual", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("fine_tuned_model", name="uq_jobs_fine_tuned_model"),
    )
    _partial_index(
        "ix_jobs_claim",
        "jobs",
        ["pool", sa.text("priority DESC"), "created_at", "required_gpus"],
        "state = 'queued'",
    )
    _partial_index(
        "ix_jobs_counts", "jobs", ["state", "pool", "attempt", "fence"], "probe IS NULL AND export IS NULL"
    )
    _partial_index("ix_jobs_held", "jobs", ["id"], "state IN ('cancelling', 'pausing', 'running')")
    op.create_index("ix_jobs_tenant", "jobs", ["tenant", "created_at", "id"])
    _partial_index(
        "ix_jobs_unfinished",
        "jobs",
        ["tenant"],
        "state IN ('cancelling', 'paused', 'pausing', 'queued', 'running')",
    )


def _create_history() -> None:
    op.create_table(
        "job_events",
        *_texts(job_id=64, level=8, type=16),
        *_ints("sequence", "fence"),
        *_documents("data"),
        *_times("created_at"),
        sa.Column("message", sa.String(), nullable=False),
        _of_job("job_events"),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_job_events"),
    )
    op.create_table(
        "job_logs",
        *_texts(job_id=64),
        *_ints("sequence", "num_lines", "end_bytes", "attempt"),
        *_ints("rank", nullable=True),
        *_times("created_at"),
        sa.Column("text", sa.Text(), nullable=False),
        _of_job("job_logs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_job_logs"),
    )
    op.create_table(
        "metrics",
        *_texts(job_id=64),
        *_ints("step"),
        *_documents("values"),
        _of_job("metrics"),
        sa.PrimaryKeyConstraint("job_id", "step", name="pk_metrics"),
    )
    op.create_table(
        "rollouts",
        *_texts(job_id=64, split=16),
        *_ints("step", "position"),
        *_documents("data"),
        sa.Column("has_signal", sa.Boolean(), nullable=False),
        _of_job("rollouts"),
        sa.PrimaryKeyConstraint("job_id", "split", "step", "position", name="pk_rollouts"),
    )
    op.create_table(
        "job_sinks",
        *_texts(job_id=64, type=16, state=16, reason=512),
        *_ints("claim", "failures", "step"),
        *_documents("settings"),
        *_times("due_at", nullable=True),
        _of_job("job_sinks"),
        sa.PrimaryKeyConstraint("job_id", "type", name="pk_job_sinks"),
    )
    _partial_index("ix_job_sinks_due", "job_sinks", ["due_at"], "due_at IS NOT NULL")


def _create_results() -> None:
    op.create_table(
        "checkpoints",
        *_texts(id=64, job_id=64, state_sha256=64, adapter_key=512, adapter_sha256=64),
        *_ints("step", "fence", "adapter_bytes"),
        *_documents("metrics", "shards"),
        *_times("created_at"),
        *_texts(nullable=True, state_key=512),
        _of_job("checkpoints"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
        sa.UniqueConstraint("job_id", "step", name="uq_checkpoints_job_id_step"),
    )
    op.create_table(
        "artifacts",
        *_texts(id=64, job_id=64, kind=16),
        *_ints("step", "fence"),
        _of_job("artifacts"),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("job_id", "kind", name="uq_artifacts_job_id_kind"),
    )
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id"])


def _create_bookkeeping_and_webhooks() -> None:
    op.create_table(
        "idempotency_keys",
        *_texts(tenant=64, key=256, request_sha256=64, job_id=64),
        *_times("created_at"),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_request_sha256", "idempotency_keys", ["request_sha256"])
    op.create_table(
        "audit",
        *_texts(tenant=64, key_id=16, action=64, object_id=64, request_id=64),
        *_times("created_at"),
        sa.Column("id", ROW_NUMBER, autoincrement=True, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_table(
        "webhook_endpoints",
        *_texts(id=64, tenant=64, name=128, url=2048, event_types=256, secret=128),
        *_times("created_at", "updated_at"),
        *_texts(nullable=True, disabled_reason=256, previous_secret=128),
        *_times("previous_secret_until", nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant"])
    op.create_table(
        "webhook_deliveries",
        *_texts(id=64, endpoint_id=64, tenant=64, event_id=64, event_type=64, job_id=64, state=16),
        *_ints("claim", "failures"),
        *_documents("attempts"),
        *_times("created_at"),
        *_times("due_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    _partial_index("ix_webhook_deliveries_due", "webhook_deliveries", ["due_at"], "due_at IS NOT NULL")
    op.create_index("ix_webhook_deliveries_log", "webhook_deliveries", ["endpoint_id", "created_at", "id"])


def _create_chat_and_workers() -> None:
    op.create_table(
        "chat_workers",
        *_texts(name=128),
        *_times("seen_at"),
        sa.Column("is_training", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_chat_workers"),
    )
    op.create_table(
        "model_servers",
        *_texts(key=64, tenant=64, model=512),
        *_times("wanted_at"),
        *_ints("fence"),
        *_texts(nullable=True, lease_owner=128),
        *_times("lease_expires_at", nullable=True),
        *_texts(nullable=True, address=256, secret=64),
        *_documents("refusal", nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_model_servers"),
    )
    op.create_table(
        "worker_hosts",
        *_texts(host=128, pool=64, capabilities=256),
        *_ints("gpus", "gpu_memory_gb"),
        *_times("seen_at"),
        sa.PrimaryKeyConstraint("host", "pool", name="pk_worker_hosts"),
    )
    op.create_table(
        "worker_helpers",
        *_texts(host=128, pool=64, helper=32),
        *_times("seen_at"),
        sa.PrimaryKeyConstraint("host", "pool", "helper", name="pk_worker_helpers"),
    )
