"""A real receiver of webhooks on 127.0.0.1, endpoints that lead to it, and what it verifies requests with."""

from __future__ import annotations

from typing import Any

import standardwebhooks
from openai import OpenAI
from sqlalchemy import func, select, update

from service.jobs.store.webhook_events import EVENT_TYPES
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.principal import Principal
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.settings import Settings
from service.webhooks.schemas import WebhookCreate, WebhookWithSecret
from service.webhooks.service import Webhooks
from tests.chat_server import Recorded

ALLOWED = "127.0.0.1"
"""For GRPO_ALLOWED_HOSTS: every receiver of the tests."""


def webhooks_of(database: Database, settings: Settings, tenant: str = "acme") -> Webhooks:
    return Webhooks(database, settings, Principal(tenant, "test", frozenset()), "")


def register(database: Database, settings: Settings, url: str, **more: Any) -> WebhookWithSecret:
    """An endpoint for all events of tenant `acme`."""
    tenant = more.pop("tenant", "acme")
    asked = WebhookCreate.model_validate({"url": url, "event_types": list(EVENT_TYPES)} | more)
    return webhooks_of(database, settings, tenant).create(asked)


def verified(recorded: Recorded, secret: str) -> Any:
    """The event as OpenAI's unmodified client reads it. Raises where it, or `standardwebhooks`, refuses."""
    standardwebhooks.Webhook(secret).verify(recorded.body, dict(recorded.headers))
    with OpenAI(api_key="none", webhook_secret=secret) as client:
        return client.webhooks.unwrap(recorded.body, recorded.headers)


def deliveries(database: Database) -> list[WebhookDelivery]:
    """All of them, oldest first."""
    with database.reading() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.created_at)))


def endpoint(database: Database, endpoint_id: str) -> WebhookEndpoint:
    with database.reading() as session:
        return session.get_one(WebhookEndpoint, endpoint_id)


def seconds_left(database: Database) -> float:
    """Until the first one that waits is due."""
    with database.reading() as session:
        return float(session.scalar(select(func.min(WebhookDelivery.due_at) - db_now())) or 0.0)


def make_due(database: Database) -> None:
    """Everything that waits, and every claim of somebody who died."""
    with database.transaction() as session:
        waiting = update(WebhookDelivery).where(WebhookDelivery.due_at.is_not(None))
        session.execute(waiting.values(due_at=db_now() - 1))
