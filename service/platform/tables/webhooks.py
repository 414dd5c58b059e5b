"""Tables of webhooks: receivers and deliveries."""

from typing import Any

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.platform.clock import db_now
from service.platform.tables.core import Base, Document, partial_index


class WebhookEndpoint(Base):
    """A tenant's receiver. Its secrets are stored in plain text, because they sign each request."""

    __tablename__ = "webhook_endpoints"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(128), default="")
    url: Mapped[str] = mapped_column(String(2048))
    event_types: Mapped[str] = mapped_column(String(256))
    """Sorted, separated by spaces."""
    enabled: Mapped[bool] = mapped_column(default=True)
    disabled_reason: Mapped[str | None] = mapped_column(String(256))
    secret: Mapped[str] = mapped_column(String(128))
    previous_secret: Mapped[str | None] = mapped_column(String(128))
    """Old secrets, newest first, separated by spaces."""
    previous_secret_until: Mapped[float | None]
    """Until then the old secrets sign as well."""
    created_at: Mapped[float] = mapped_column(default=db_now())
    updated_at: Mapped[float] = mapped_column(default=db_now(), onupdate=db_now())


class WebhookDelivery(Base):
    """One event for one endpoint: an outbox and a log in one.

    There is no foreign key, because the end of a job must not fail if an endpoint is deleted at that moment.
    Such a delivery is given up.
    """

    __tablename__ = "webhook_deliveries"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """The `webhook-id`, from event and endpoint: the same with every attempt."""
    endpoint_id: Mapped[str] = mapped_column(String(64))
    tenant: Mapped[str] = mapped_column(String(64))
    event_id: Mapped[str] = mapped_column(String(64))
    event_type: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(default=db_now())
    """Time of the event."""
    state: Mapped[str] = mapped_column(String(16), default="pending")
    """`pending`, `delivered` or `failed`."""
    due_at: Mapped[float | None]
    """When it is due; while claimed, when the lease expires. None: never."""
    claim: Mapped[int] = mapped_column(default=0)
    """Grows with each claim; writes under an older claim change nothing."""
    failures: Mapped[int] = mapped_column(default=0)
    """Failed attempts since the event or the last redelivery request."""
    attempts: Mapped[list[Any]] = mapped_column(Document, default=list)
    """The latest, oldest first: `schemas.Attempt`."""

    __table_args__ = (
        Index("ix_webhook_deliveries_log", "endpoint_id", "created_at", "id"),
        partial_index("ix_webhook_deliveries_due", ["due_at"], where="due_at IS NOT NULL"),
    )

    @property
    def event(self) -> dict[str, Any]:
        """OpenAI's event object, as it is sent."""
        return {
            "object": "event",
            "id": self.event_id,
            "type": self.event_type,
            "created_at": int(self.created_at),
            "data": {"id": self.job_id},
        }
