"""Rows → the API's objects. A secret is in one of them only: the answer to who has just made it."""

from __future__ import annotations

from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.webhooks.events import event
from service.webhooks.schemas import DeliveryRead, WebhookRead, WebhookWithSecret


def endpoint_read(row: WebhookEndpoint) -> WebhookRead:
    return WebhookRead.model_validate(_fields(row))


def endpoint_with_secret(row: WebhookEndpoint) -> WebhookWithSecret:
    return WebhookWithSecret.model_validate(_fields(row) | {"signing_secret": row.secret})


def delivery_read(row: WebhookDelivery) -> DeliveryRead:
    return DeliveryRead.model_validate(
        {
            "id": row.id,
            "webhook_endpoint_id": row.endpoint_id,
            "event": event(row),
            "created_at": int(row.created_at),
            "status": row.state,
            "next_attempt_at": None if row.due_at is None else int(row.due_at),
            "attempts": row.attempts,
        }
    )


def _fields(row: WebhookEndpoint) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "url": row.url,
        "event_types": row.event_types.split(),
        "enabled": row.enabled,
        "disabled_reason": row.disabled_reason,
        "created_at": int(row.created_at),
        "updated_at": int(row.updated_at),
    }
