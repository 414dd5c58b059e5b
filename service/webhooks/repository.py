"""Queries about webhook endpoints and their deliveries, for the tenant that asks."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import ColumnElement, delete, func, select, tuple_, update
from sqlalchemy.orm import Session

from service.jobs.store.repository import DEDUPLICATION_SECONDS
from service.platform.clock import db_now
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint

Row = TypeVar("Row", WebhookEndpoint, WebhookDelivery)


def find(session: Session, tenant: str, endpoint_id: str, *, lock: bool = False) -> WebhookEndpoint | None:
    """The tenant's endpoint; with `lock` it is locked until the transaction ends."""
    query = select(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant == tenant)
    return session.scalar(query.with_for_update() if lock else query)


def made_lately(session: Session, asked: WebhookEndpoint) -> WebhookEndpoint | None:
    """The tenant's newest endpoint from an equal request within the last ten minutes."""
    table = WebhookEndpoint
    same = (getattr(table, name) == getattr(asked, name) for name in ("tenant", "name", "url", "event_types"))
    query = select(table).where(*same, table.created_at > db_now() - DEDUPLICATION_SECONDS)
    return session.scalar(query.order_by(table.created_at.desc()).limit(1))


def num_endpoints(session: Session, tenant: str) -> int:
    query = select(func.count()).select_from(WebhookEndpoint).where(WebhookEndpoint.tenant == tenant)
    return session.scalar(query) or 0


def page(
    session: Session, tenant: str, *, after: WebhookEndpoint | None, limit: int
) -> list[WebhookEndpoint]:
    """Newest first, one more than `limit` if there are more."""
    return _newest(session, WebhookEndpoint, WebhookEndpoint.tenant == tenant, after, limit)


def delete_endpoint(session: Session, endpoint: WebhookEndpoint) -> None:
    """The endpoint, which the caller has locked, and its log."""
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint.id))
    session.delete(endpoint)


def find_delivery(
    session: Session, tenant: str, endpoint_id: str, delivery_id: str, *, lock: bool = False
) -> WebhookDelivery | None:
    """The tenant's delivery to this endpoint."""
    table = WebhookDelivery
    query = select(table).where(
        table.id == delivery_id, table.endpoint_id == endpoint_id, table.tenant == tenant
    )
    return session.scalar(query.with_for_update() if lock else query)


def page_of_deliveries(
    session: Session, endpoint_id: str, *, after: WebhookDelivery | None, limit: int
) -> list[WebhookDelivery]:
    """Newest first, one more than `limit` if there are more."""
    return _newest(session, WebhookDelivery, WebhookDelivery.endpoint_id == endpoint_id, after, limit)


def end_pending(session: Session, endpoint_id: str) -> None:
    """End the pending deliveries of an endpoint that the caller has locked and disabled."""
    session.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == "pending")
        .values(state="failed", due_at=None)
        .execution_options(synchronize_session=False)
    )


def _newest(
    session: Session, table: type[Row], wanted: ColumnElement[bool], after: Row | None, limit: int
) -> list[Row]:
    query = select(table).where(wanted)
    if after is not None:
        query = query.where(tuple_(table.created_at, table.id) < (after.created_at, after.id))
    return list(session.scalars(query.order_by(table.created_at.desc(), table.id.desc()).limit(limit + 1)))
