"""Endpoints of a real webhook receiver on 127.0.0.1, their deliveries, and the check of its requests."""

from typing import Any

import standardwebhooks
from openai import OpenAI
from sqlalchemy import select, update

from service.jobs.store.webhook_events import EVENT_TYPES
from service.platform.clock import db_now, read_clock
from service.platform.db import Database
from service.platform.principal import Principal
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.settings import Settings
from service.webhooks.schemas import WebhookCreate, WebhookWithSecret
from service.webhooks.service import Webhooks
from tests.support.chat_server import Recorded

ALLOWED = "127.0.0.1"
"""For GRPO_ALLOWED_HOSTS: the host of every receiver in the tests."""


OWNER = Principal("acme", "test")


def register(database: Database, settings: Settings, url: str, **more: Any) -> WebhookWithSecret:
    """An endpoint for all events of tenant `acme`, or of `tenant`."""
    owner = Principal(more.pop("tenant", OWNER.tenant), "test")
    asked = WebhookCreate.model_validate({"url": url, "event_types": list(EVENT_TYPES)} | more)
    return Webhooks(database, settings).create(owner, asked)


def verified(recorded: Recorded, secret: str) -> Any:
    """The event as OpenAI's unmodified client reads it. Raises if it or `standardwebhooks` refuses."""
    standardwebhooks.Webhook(secret).verify(recorded.body, dict(recorded.headers))
    with OpenAI(api_key="none", webhook_secret=secret) as client:
        return client.webhooks.unwrap(recorded.body, recorded.headers)


def deliveries(database: Database) -> list[WebhookDelivery]:
    """All deliveries, oldest first."""
    with database.reading() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.created_at)))


def endpoint(database: Database, endpoint_id: str) -> WebhookEndpoint:
    with database.reading() as session:
        return session.get_one(WebhookEndpoint, endpoint_id)


def clock_of(database: Database) -> float:
    with database.reading() as session:
        return read_clock(session)


def make_due(database: Database) -> None:
    """Make every pending delivery due, and expire every claim."""
    with database.transaction() as session:
        waiting = update(WebhookDelivery).where(WebhookDelivery.due_at.is_not(None))
        session.execute(waiting.values(due_at=db_now() - 1))
