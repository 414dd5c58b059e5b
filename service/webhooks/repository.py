"""Queries about webhook endpoints and their deliveries; each takes the tenant, or a row that was locked."""

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.jobs.store.repository import DEDUPLICATION_SECONDS
from service.platform.clock import db_now
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint


def find(session: Session, tenant: str, endpoint_id: str, *, lock: bool = False) -> WebhookEndpoint | None:
    """The tenant's endpoint; with `lock` it is locked until the transaction ends."""
    query = select(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant == tenant)
    return session.scalar(query.with_for_update() if lock else query)


def find_equal(session: Session, row: WebhookEndpoint) -> WebhookEndpoint | None:
    """The tenant's newest endpoint from an equal request within the last ten minutes."""
    table = WebhookEndpoint
    same = (getattr(table, name) == getattr(row, name) for name in ("tenant", "name", "url", "event_types"))
    query = select(table).where(*same, table.created_at > db_now() - DEDUPLICATION_SECONDS)
    return session.scalar(query.order_by(table.created_at.desc()).limit(1))


def num_endpoints(session: Session, tenant: str) -> int:
    query = select(func.count()).select_from(WebhookEndpoint).where(WebhookEndpoint.tenant == tenant)
    return session.scalar(query) or 0


def delete_endpoint(session: Session, endpoint: WebhookEndpoint) -> None:
    """Delete an endpoint, which the caller has locked, and its log."""
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint.id))
    session.delete(endpoint)


def lock_delivery(session: Session, endpoint_id: str, delivery_id: str) -> WebhookDelivery | None:
    """A delivery to this endpoint, locked until the transaction ends."""
    table = WebhookDelivery
    query = select(table).where(table.id == delivery_id, table.endpoint_id == endpoint_id)
    return session.scalar(query.with_for_update())


def end_pending(session: Session, endpoint_id: str) -> None:
    """End the pending deliveries of an endpoint that the caller has locked and disabled."""
    session.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == "pending")
        .values(state="failed", due_at=None)
        .execution_options(synchronize_session=False)
    )
