"""The event that a webhook receives, as JSON."""

from __future__ import annotations

import json
from typing import Any

from service.platform.tables.webhooks import WebhookDelivery


def event(delivery: WebhookDelivery) -> dict[str, Any]:
    """OpenAI's event object."""
    return {
        "object": "event",
        "id": delivery.event_id,
        "type": delivery.event_type,
        "created_at": int(delivery.created_at),
        "data": {"id": delivery.job_id},
    }


def body(delivery: WebhookDelivery) -> bytes:
    """What is sent, in the same bytes each time."""
    return json.dumps(event(delivery)).encode()
