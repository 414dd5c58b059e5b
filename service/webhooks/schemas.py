"""Bodies of the webhook endpoints, in the shape of OpenAI's `client.webhooks`.

Not in OpenAI's API: `enabled`, `disabled_reason`, the log of deliveries. Left out: a hint at the secret.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from service.jobs.store.webhook_events import EventType
from service.web.validation import RequestBody, UnixSeconds

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
    """Sign with both secrets for 24 hours; false: the old one is invalid at once."""


class WebhookTest(_WebhookBody):
    event_type: EventType | None = None
    """Type of the test event; default: the endpoint's first."""


class EventTypeList(BaseModel):
    object: Literal["list"] = "list"
    data: list[EventType]


class WebhookRead(BaseModel):
    """OpenAI's `webhook_endpoint`."""

    model_config = ConfigDict(from_attributes=True)
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    id: str
    name: str
    url: str
    event_types: Annotated[list[EventType], BeforeValidator(str.split)]
    enabled: bool
    disabled_reason: str | None
    created_at: UnixSeconds
    updated_at: UnixSeconds


class WebhookWithSecret(WebhookRead):
    signing_secret: str = Field(validation_alias="secret", repr=False)
    """Shown only once."""


class WebhookDeleted(BaseModel):
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    id: str
    deleted: Literal[True] = True


class WebhookTested(BaseModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: EventType
    success: Literal[True] = True
    """The endpoint's response had `status_code`. If there is no response, the request fails."""
    status_code: int
    error: str | None
    delivery_id: str


class Attempt(BaseModel):
    """One request and its result."""

    model_config = ConfigDict(frozen=True)
    created_at: int
    status_code: int | None = None
    """None if there was no response."""
    error: str | None = None
    seconds: float
    response: str = ""
    """The beginning of the response body."""

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
    model_config = ConfigDict(from_attributes=True)
    object: Literal["webhook_delivery"] = "webhook_delivery"
    id: str
    """The `webhook-id` header, the same with every attempt."""
    webhook_endpoint_id: str = Field(validation_alias="endpoint_id")
    event: WebhookEventRead
    created_at: UnixSeconds
    status: Literal["pending", "delivered", "failed"] = Field(validation_alias="state")
    next_attempt_at: UnixSeconds | None = Field(validation_alias="due_at")
    attempts: list[Attempt]
    """The latest, oldest first."""
