"""The webhooks' bodies, in the shape of OpenAI's `client.webhooks`.

Added to OpenAI's: `enabled`, `disabled_reason`, the log of deliveries. Not taken over: a hint at the secret.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.store.webhook_events import EventType

Url = Annotated[
    str,
    Field(
        max_length=2048,
        description="https on port 443 or 8443, and every address of its name is public.",
        examples=["https://example.com/hooks/grpo"],
    ),
]
EventTypes = Annotated[
    list[EventType], Field(min_length=1, max_length=16, examples=[["fine_tuning.job.succeeded"]])
]
Name = Annotated[str, Field(max_length=128, description="For people.")]


class Request(BaseModel):
    """Unknown fields are refused: a typo is an error where it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WebhookCreate(Request):
    url: Url
    event_types: EventTypes
    name: Name = ""


class WebhookUpdate(Request):
    """What is left out stays as it is."""

    url: Url | None = None
    event_types: EventTypes | None = None
    name: Name | None = None
    enabled: bool | None = None
    """False ends what is still to be sent; true lets later events through again."""


class SecretRotate(Request):
    keep_old_secret_active_for_24_hours: bool = True
    """Both secrets sign until then; false ends the old one at once."""


class WebhookTest(Request):
    event_type: EventType | None = None
    """The type of the event that is sent; by default the first that the endpoint wants."""


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


class EventRead(BaseModel):
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
    event: EventRead
    created_at: int
    status: Literal["pending", "delivered", "failed"]
    next_attempt_at: int | None
    attempts: list[Attempt]
    """The latest, oldest first."""
