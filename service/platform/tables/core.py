"""The main tables. Times are Unix seconds (double) by the database's clock on both databases."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    and_,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column, synonym

from service.platform.clock import db_now

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
MODEL_CHARACTERS = 512
"""Longest name of a model: a fine-tuned one has its base's name (up to 200 characters) and three others."""

Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {float: Double(), int: BigInteger(), dict[str, Any]: Document, list[Any]: Document}


def partial_index(name: str, columns: list[Any], where: str) -> Index:
    """An index over the rows that meet a condition."""
    return Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))


class ApiKey(Base):
    """A tenant's key; only a digest of its secret is stored."""

    __tablename__ = "api_keys"
    public_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    id: Mapped[str] = synonym("public_id")
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    secret_sha256: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(128), default="")
    scopes: Mapped[list[Any]] = mapped_column(Document, default=lambda: ["read", "write"])
    created_at: Mapped[float] = mapped_column(default=db_now())
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    """The only job that a shared link may read (`web/auth.py`); None: an ordinary key."""
    last_used_at: Mapped[float | None]
    """A minute in which it was used; the newest use may be some minutes later (`web/key_use.py`)."""


class File(Base):
    """An uploaded dataset or a result file. Its content is stored under `storage_key`."""

    __tablename__ = "files"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    filename: Mapped[str] = mapped_column(String(512))
    purpose: Mapped[str] = mapped_column(String(32))
    num_bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    num_rows: Mapped[int | None]
    storage_key: Mapped[str] = mapped_column(String(512))
    created_at: Mapped[float] = mapped_column(default=db_now())
    expires_at: Mapped[float | None]
    deleted_at: Mapped[float | None]
    __table_args__ = (Index(None, "tenant", "created_at"),)


class Job(Base):
    """One training job, probe or export. Its row is the only authoritative record."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    pool: Mapped[str] = mapped_column(String(64), default="default")
    priority: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float] = mapped_column(default=db_now())
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]

    # the request
    model: Mapped[str] = mapped_column(String(MODEL_CHARACTERS))
    training_file: Mapped[str] = mapped_column(String(64))
    validation_file: Mapped[str | None] = mapped_column(String(64))
    validation_split: Mapped[float | None]
    suffix: Mapped[str | None] = mapped_column(String(64))
    seed: Mapped[int]
    # "metadata" is SQLAlchemy's own name
    labels: Mapped[dict[str, Any] | None] = mapped_column("metadata", Document)
    resources: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    integrations: Mapped[list[Any] | None] = mapped_column(Document)
    """External destinations of its metrics (`service/sinks/`); None: no destinations."""
    method: Mapped[dict[str, Any]] = mapped_column(Document)
    """The expanded method: what the engine's `RunConfig.method` accepts."""
    requested: Mapped[dict[str, Any] | None] = mapped_column(Document, deferred=True)
    """The request's body, for clones; loaded when it is used."""
    dataset: Mapped[dict[str, Any] | None] = column_property(requested["dataset"])
    """The training dataset, if the request names it."""
    validation_dataset: Mapped[dict[str, Any] | None] = column_property(requested["validation_dataset"])
    warnings: Mapped[list[Any]] = mapped_column(Document, default=list)
    required_capabilities: Mapped[str] = mapped_column(String(128), default="")
    """Capabilities that a machine needs to run it: sorted, separated by spaces (`jobs/store/machines.py`)."""
    required_gpus: Mapped[int] = mapped_column(default=0)
    required_gpu_memory_gb: Mapped[int] = mapped_column(default=0)

    # what its user may change in any state
    name: Mapped[str | None] = mapped_column(String(128))
    notes: Mapped[str | None] = mapped_column(Text())
    tags: Mapped[list[Any]] = mapped_column(Document, default=list)
    archived: Mapped[bool] = mapped_column(default=False)

    # the lease
    fence: Mapped[int] = mapped_column(default=0)
    """Grows with each claim and each sweep; a write under an older fence changes nothing."""
    attempt: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    """Consecutive attempts without a new checkpoint."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[float | None]
    not_before: Mapped[float] = mapped_column(default=0.0)
    last_woken_at: Mapped[float] = mapped_column(default=0.0)

    # progress
    phase: Mapped[str] = mapped_column(String(32), default="queued")
    step: Mapped[int] = mapped_column(default=0)
    total_steps: Mapped[int] = mapped_column(default=0)
    checkpoint_step: Mapped[int] = mapped_column(default=0)
    """Step of the newest published checkpoint."""
    engine_sequence: Mapped[int] = mapped_column(default=0)
    """Number of the newest engine event that was recorded."""
    event_sequence: Mapped[int] = mapped_column(default=0)
    """Number of the job's newest row in `job_events`."""
    trained_tokens: Mapped[int | None]
    evaluation: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    """`baseline`, `best`, `last`: each {step, …metrics}; `verdict`; `retention`."""
    fine_tuned_model: Mapped[str | None] = mapped_column(String(MODEL_CHARACTERS), unique=True)
    failure: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """`code`, `message`, `hint`, `evidence`."""
    probe: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """Set if the job is a probe, which trains nothing: `prompts`, and `result` after its end."""
    export: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """Set if the job is an export: `job_id`, `format`, `step` and `sha256` of the weights."""
    estimate: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """Expected cost at creation (`jobs/intake/estimate.py`)."""
    actual: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """Cost of its steps so far (`jobs/intake/costs.py`)."""

    __table_args__ = (
        partial_index(
            "ix_jobs_claim",
            ["pool", text("priority DESC"), "created_at", "required_gpus"],
            where="state = 'queued'",
        ),
        # without the lease's end, because each renewal would then update every index of the row
        partial_index("ix_jobs_held", ["id"], where="state IN ('cancelling', 'pausing', 'running')"),
        partial_index(
            "ix_jobs_unfinished",
            ["tenant"],
            where="state IN ('cancelling', 'paused', 'pausing', 'queued', 'running')",
        ),
        Index("ix_jobs_tenant", "tenant", "created_at", "id"),
        # covers the counts of `/metrics`
        partial_index(
            "ix_jobs_counts", ["state", "pool", "attempt", "fence"], where="probe IS NULL AND export IS NULL"
        ),
    )


class JobEvent(Base):
    """Append-only history of a job; `sequence` is the SSE id."""

    __tablename__ = "job_events"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[float] = mapped_column(default=db_now())
    level: Mapped[str] = mapped_column(String(8), default="info")
    type: Mapped[str] = mapped_column(String(16), default="message")
    """`message`, `metrics` or `status`."""
    message: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    fence: Mapped[int] = mapped_column(default=0)


class Metric(Base):
    """One training step's metrics. First write wins: a repeated step never changes."""

    __tablename__ = "metrics"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    values: Mapped[dict[str, Any]] = mapped_column(Document)


class Rollout(Base):
    """One group of completions (`grpo_engine.contract.records.GroupRecord` in `data`)."""

    __tablename__ = "rollouts"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    split: Mapped[str] = mapped_column(String(16), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    has_signal: Mapped[bool]
    data: Mapped[dict[str, Any]] = mapped_column(Document)


class Checkpoint(Base):
    """A published checkpoint: its state archive for resuming and its adapter archive for users."""

    __tablename__ = "checkpoints"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    step: Mapped[int]
    fence: Mapped[int]
    state_key: Mapped[str | None] = mapped_column(String(512))
    """Storage key of the whole checkpoint (tar); None if it is damaged, so that no run resumes from it."""
    state_sha256: Mapped[str] = mapped_column(String(64))
    shards: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    """Storage key → SHA-256 of the shards that hosts without the first rank stored beside the archive."""
    adapter_key: Mapped[str] = mapped_column(String(512))
    """Storage key of the adapter (tar.gz, PEFT layout) or of the whole model."""
    adapter_sha256: Mapped[str] = mapped_column(String(64))
    adapter_bytes: Mapped[int]
    metrics: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    created_at: Mapped[float] = mapped_column(default=db_now())
    __table_args__ = (UniqueConstraint("job_id", "step"),)

    @property
    def storage_keys(self) -> list[str]:
        """Storage keys of all objects of the checkpoint."""
        return [*filter(None, (self.state_key, self.adapter_key)), *self.shards]


class Artifact(Base):
    """A result of a job. It is also a File of the tenant, so that `files.content` fetches it."""

    __tablename__ = "artifacts"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Id of the file."""
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    """`adapter`, `model` (whole weights), `metrics` (CSV) or an export's `merged`."""
    step: Mapped[int]
    fence: Mapped[int]
    __table_args__ = (UniqueConstraint("job_id", "kind"),)


class IdempotencyKey(Base):
    """A POST and the job that it created, written in one transaction."""

    __tablename__ = "idempotency_keys"
    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(256), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64), index=True)
    job_id: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(default=db_now())


class AuditEntry(Base):
    """One change (`platform/audit.py`)."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True
    )
    created_at: Mapped[float] = mapped_column(default=db_now())
    tenant: Mapped[str] = mapped_column(String(64))
    key_id: Mapped[str] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(64))
    object_id: Mapped[str] = mapped_column(String(64))
    request_id: Mapped[str] = mapped_column(String(64), default="")


def exists_now() -> ColumnElement[bool]:
    """Condition: neither deleted nor expired."""
    is_unexpired = or_(File.expires_at.is_(None), File.expires_at > db_now())
    return and_(File.deleted_at.is_(None), is_unexpired)
