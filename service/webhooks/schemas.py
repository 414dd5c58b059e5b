"""The webhooks' bodies, in the shape of OpenAI's `client.webhooks`.

Added to OpenAI's: `enabled`, `disabled_reason`, the log of deliveries. Not taken over: a hint at the secret.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.store.webhook_events import EventType
from service.web.validation import RequestBody

Url = Annotated[
    str,
    Field(
        max_length=2048,
        description="https URL with a public host name on port 443 or 8443.",
        examples=["https://example.com/hooks/grpo"],
    ),
]
EventTypes = Annotated[
    list[EventType],
    Field(
        min_length=1,
        max_length=16,
        description="Types of the events to send.",
        examples=[["fine_tuning.job.succeeded"]],
    ),
]
Name = Annotated[str, Field(max_length=128, description="Name for display.")]


class _WebhookBody(RequestBody):
    model_config = ConfigDict(strict=False)


class WebhookCreate(_WebhookBody):
    url: Url
    event_types: EventTypes
    name: Name = ""


class WebhookUpdate(_WebhookBody):
    """Fields that are left out do not change."""

    url: Url | None = None
    """https URL with a public host name on port 443 or 8443."""
    event_types: EventTypes | None = None
    """Types of the events to send."""
    name: Name | None = None
    """Name for display."""
    enabled: bool | None = None
    """false stops pending deliveries; true enables later ones."""


class SecretRotate(_WebhookBody):
    keep_old_secret_active_for_24_hours: bool = True
    """Sign with both secrets for 24 hours; false ends the old one at once."""


class WebhookTest(_WebhookBody):
    event_type: EventType | None = None
    """Type of the test event; default: the endpoint's first."""


class WebhookRead(BaseModel):
    """OpenAI's `webhook_endpoint`."""

    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    id: str
    name: str
    url: str
    event_types: list[EventType]
    enabled: bool
    disabled_reason: str | None
    created_at: int
    updated_at: int


class WebhookWithSecret(WebhookRead):
    signing_secret: str = Field(repr=False)
    """Shown this once."""


class WebhookDeleted(BaseModel):
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    id: str
    deleted: Literal[True] = True


class WebhookTested(BaseModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: EventType
    success: Literal[True] = True
    """The endpoint answered, `status_code` says what; one that did not is an error."""
    status_code: int
    error: str | None
    delivery_id: str


class Attempt(BaseModel):
    """One request and what came of it."""

    model_config = ConfigDict(frozen=True)
    created_at: int
    status_code: int | None = None
    """None: no answer."""
    error: str | None = None
    seconds: float
    response: str = ""
    """The beginning of the answer's body."""

    @property
    def succeeded(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class EventData(BaseModel):
    id: str


class WebhookEventRead(BaseModel):
    """OpenAI's event, as it is sent."""

    object: Literal["event"]
    id: str
    type: EventType
    created_at: int
    data: EventData


class DeliveryRead(BaseModel):
    object: Literal["webhook_delivery"] = "webhook_delivery"
    id: str
    """The `webhook-id` header, the same with every attempt."""
    webhook_endpoint_id: str
    event: WebhookEventRead
    created_at: int
    status: Literal["pending", "delivered", "failed"]
    next_attempt_at: int | None
    attempts: list[Attempt]
    """The latest, oldest first."""
