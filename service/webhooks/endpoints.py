"""`/v1/webhook_endpoints` and `/v1/webhook_event_types` as in OpenAI's API, and the log of deliveries."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.jobs.store.webhook_events import EVENT_TYPES
from service.web.auth import Reader, Writer
from service.web.dependencies import IsRetry
from service.web.pagination import After, Limit, Page, page_of
from service.webhooks.schemas import (
    DeliveryRead,
    EventTypeList,
    SecretRotate,
    WebhookCreate,
    WebhookDeleted,
    WebhookRead,
    WebhookTest,
    WebhookTested,
    WebhookUpdate,
    WebhookWithSecret,
)
from service.webhooks.service import Webhooks

router = APIRouter(prefix="/v1", tags=["webhooks"])

WEBHOOKS = "/webhook_endpoints"
EndpointId = Annotated[str, Path(description="Id of the webhook endpoint.")]
DeliveryId = Annotated[str, Path(description="Id of the delivery.")]
WebhooksDep = Annotated[Webhooks, Depends()]


@router.get("/webhook_event_types")
def list_event_types(principal: Reader) -> EventTypeList:
    """All event types."""
    return EventTypeList(data=list(EVENT_TYPES))


@router.post(WEBHOOKS)
def create_webhook(
    body: WebhookCreate, principal: Writer, webhooks: WebhooksDep, is_retry: IsRetry
) -> WebhookWithSecret:
    """Register a URL for events of your jobs. Only this response contains the signing secret.

    If a client repeats the request because it received no response, the first request's endpoint is returned.
    """
    return webhooks.create(principal, body, is_retry=is_retry)


@router.get(WEBHOOKS)
def list_webhooks(
    principal: Reader, webhooks: WebhooksDep, after: After = None, limit: Limit = 20
) -> Page[WebhookRead]:
    """Newest first, without their secrets."""
    return page_of(webhooks.page(principal.tenant, after=after, limit=limit), limit)


@router.get(f"{WEBHOOKS}/{{endpoint_id}}")
def retrieve_webhook(endpoint_id: EndpointId, principal: Reader, webhooks: WebhooksDep) -> WebhookRead:
    """The endpoint without its secret; `disabled_reason` says why the service disabled it."""
    return webhooks.read(principal.tenant, endpoint_id)


@router.post(f"{WEBHOOKS}/{{endpoint_id}}")
def update_webhook(
    endpoint_id: EndpointId, body: WebhookUpdate, principal: Writer, webhooks: WebhooksDep
) -> WebhookRead:
    """Change the given fields; `enabled: true` enables an endpoint that you or a 410 disabled."""
    return webhooks.update(principal, endpoint_id, body)


@router.delete(f"{WEBHOOKS}/{{endpoint_id}}")
def delete_webhook(endpoint_id: EndpointId, principal: Writer, webhooks: WebhooksDep) -> WebhookDeleted:
    """Delete the endpoint and its log."""
    webhooks.delete(principal, endpoint_id)
    return WebhookDeleted(id=endpoint_id)


@router.post(f"{WEBHOOKS}/{{endpoint_id}}/rotate_secret")
def rotate_secret(
    endpoint_id: EndpointId,
    principal: Writer,
    webhooks: WebhooksDep,
    is_retry: IsRetry,
    body: SecretRotate | None = None,
) -> WebhookWithSecret:
    """A new secret, shown only once. The old one remains valid for 24 hours by default.

    If a client repeats the request because it received no response, the first request's secret is returned.
    """
    return webhooks.rotate(principal, endpoint_id, body or SecretRotate(), is_retry=is_retry)


@router.post(f"{WEBHOOKS}/{{endpoint_id}}/test")
def send_test_event(
    endpoint_id: EndpointId, principal: Writer, webhooks: WebhooksDep, body: WebhookTest | None = None
) -> WebhookTested:
    """Send one event about the job `ftjob-test` and return the response's status; 400 if there is none."""
    return webhooks.test(principal, endpoint_id, body.event_type if body else None)


@router.get(f"{WEBHOOKS}/{{endpoint_id}}/deliveries")
def list_deliveries(
    endpoint_id: EndpointId, principal: Reader, webhooks: WebhooksDep, after: After = None, limit: Limit = 20
) -> Page[DeliveryRead]:
    """Past and pending deliveries with their attempts, newest first."""
    return page_of(webhooks.deliveries(principal.tenant, endpoint_id, after=after, limit=limit), limit)


@router.post(f"{WEBHOOKS}/{{endpoint_id}}/deliveries/{{delivery_id}}/redeliver")
def redeliver_event(
    endpoint_id: EndpointId, delivery_id: DeliveryId, principal: Writer, webhooks: WebhooksDep
) -> DeliveryRead:
    """Send an event again within seconds, with the same `webhook-id`."""
    return webhooks.redeliver(principal, endpoint_id, delivery_id)
