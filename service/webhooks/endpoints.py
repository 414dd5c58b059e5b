"""`/v1/webhook_endpoints` as in OpenAI's API, and the log of deliveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.web.auth import Reader, Writer
from service.web.dependencies import DatabaseDep, RequestId, RetryCount, SettingsDep, is_retry
from service.web.pagination import After, Limit, Page, page_of
from service.webhooks.schemas import (
    DeliveryRead,
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

router = APIRouter(prefix="/v1/webhook_endpoints", tags=["webhooks"])


def _for_reader(
    principal: Reader, database: DatabaseDep, settings: SettingsDep, request_id: RequestId
) -> Webhooks:
    return Webhooks(database, settings, principal, request_id)


def _for_writer(
    principal: Writer, database: DatabaseDep, settings: SettingsDep, request_id: RequestId
) -> Webhooks:
    return Webhooks(database, settings, principal, request_id)


EndpointId = Annotated[str, Path(description="Id of the webhook endpoint.")]
DeliveryId = Annotated[str, Path(description="Id of the delivery.")]
ReadWebhooks = Annotated[Webhooks, Depends(_for_reader)]
WriteWebhooks = Annotated[Webhooks, Depends(_for_writer)]


@router.post("")
def create_webhook(
    body: WebhookCreate, webhooks: WriteWebhooks, retry_count: RetryCount = "0"
) -> WebhookWithSecret:
    """Register a URL for events of your jobs. Only this response contains the signing secret.

    A request that the client repeats for want of a response returns the endpoint that the first one created.
    """
    return webhooks.create(body, is_retry=is_retry(retry_count))


@router.get("")
def list_webhooks(webhooks: ReadWebhooks, after: After = None, limit: Limit = 20) -> Page[WebhookRead]:
    """Newest first, without their secrets."""
    return page_of(webhooks.page(after=after, limit=limit), limit)


@router.get("/{endpoint_id}")
def retrieve_webhook(endpoint_id: EndpointId, webhooks: ReadWebhooks) -> WebhookRead:
    """The endpoint without its secret; `disabled_reason` says why the service disabled it."""
    return webhooks.read(endpoint_id)


@router.post("/{endpoint_id}")
def update_webhook(endpoint_id: EndpointId, body: WebhookUpdate, webhooks: WriteWebhooks) -> WebhookRead:
    """Change the given fields; `enabled: true` enables an endpoint that you or a 410 disabled."""
    return webhooks.update(endpoint_id, body)


@router.delete("/{endpoint_id}")
def delete_webhook(endpoint_id: EndpointId, webhooks: WriteWebhooks) -> WebhookDeleted:
    """Delete the endpoint and its log."""
    webhooks.delete(endpoint_id)
    return WebhookDeleted(id=endpoint_id)


@router.post("/{endpoint_id}/rotate_secret")
def rotate_secret(
    endpoint_id: EndpointId, webhooks: WriteWebhooks, body: SecretRotate | None = None
) -> WebhookWithSecret:
    """A new secret, shown only once. The old one remains valid for 24 hours by default."""
    asked = body or SecretRotate()
    return webhooks.rotate(endpoint_id, keep_old=asked.keep_old_secret_active_for_24_hours)


@router.post("/{endpoint_id}/test")
def send_test_event(
    endpoint_id: EndpointId, webhooks: WriteWebhooks, body: WebhookTest | None = None
) -> WebhookTested:
    """Send one event about the job `ftjob-test` and return the response's status; 400 if there is none."""
    return webhooks.test(endpoint_id, body.event_type if body else None)


@router.get("/{endpoint_id}/deliveries")
def list_deliveries(
    endpoint_id: EndpointId, webhooks: ReadWebhooks, after: After = None, limit: Limit = 20
) -> Page[DeliveryRead]:
    """Past and pending deliveries with their attempts, newest first."""
    return page_of(webhooks.deliveries(endpoint_id, after=after, limit=limit), limit)


@router.post("/{endpoint_id}/deliveries/{delivery_id}/redeliver")
def redeliver_event(
    endpoint_id: EndpointId, delivery_id: DeliveryId, webhooks: WriteWebhooks
) -> DeliveryRead:
    """Send an event again within seconds, with the same `webhook-id`."""
    return webhooks.redeliver(endpoint_id, delivery_id)
