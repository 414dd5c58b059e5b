"""Due deliveries: each is claimed by one process at a time, sent by `sending.py`, and recorded.

Delivery is at least once: if a process dies between sending and `record`, its lease expires, and another one
sends the same delivery under the same id.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select, true, update
from sqlalchemy.orm import Session

from service.platform import audit
from service.platform.clock import db_now
from service.platform.ids import new_id
from service.platform.leases import QUIET, Leases
from service.platform.principal import Principal
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.webhooks import repository
from service.webhooks.schemas import Attempt

CLAIM_SECONDS = 120.0
"""Duration of a claim; longer than any attempt, including a slow DNS look-up."""
MAX_ATTEMPTS_KEPT = 20
TEST_JOB = "ftjob-test"
"""The job that a test delivery names."""
JITTER = (0.9, 1.1)
RANDOM = random.SystemRandom()
SENDER = "webhooks"
"""Actor in the audit trail when the service disables an endpoint."""
LEASES = Leases(
    WebhookDelivery, (WebhookDelivery.id,), WebhookDelivery.claim, WebhookDelivery.due_at, active=true()
)


@dataclass(frozen=True)
class Claimed:
    """A delivery that this process has claimed, and when, in Unix seconds."""

    delivery: WebhookDelivery
    now: float


def claim_due(
    session: Session,
    busy_tenants: Collection[str] = (),
    busy_endpoints: Collection[str] = (),
    served_tenants: Collection[str] = (),
) -> Claimed | None:
    """Claim the delivery that has been due for longest, except those of busy tenants and endpoints.

    Deliveries of tenants that are being served come last, so that slow receivers do not delay other tenants.
    """
    due = select(WebhookDelivery.id).where(
        LEASES.has_expired,
        WebhookDelivery.tenant.not_in(busy_tenants),
        WebhookDelivery.endpoint_id.not_in(busy_endpoints),
    )
    last = [WebhookDelivery.tenant.in_(served_tenants)] if served_tenants else []
    return _claim(session, due.order_by(*last, WebhookDelivery.due_at))


def claim_test(session: Session, endpoint: WebhookEndpoint, event_type: str) -> Claimed:
    """A test delivery without a job, already claimed."""
    event_id = new_id("evt", "_")
    row = WebhookDelivery(
        id=f"{event_id}_{endpoint.id}",
        endpoint_id=endpoint.id,
        tenant=endpoint.tenant,
        event_id=event_id,
        event_type=event_type,
        job_id=TEST_JOB,
    )
    session.add(row)
    session.flush()
    claimed = _claim(session, select(WebhookDelivery.id).where(WebhookDelivery.id == row.id))
    assert claimed is not None
    return claimed


def _claim(session: Session, candidates: Select[str]) -> Claimed | None:
    claiming = LEASES.claim(candidates, CLAIM_SECONDS).returning(WebhookDelivery, db_now())
    row = session.execute(claiming, execution_options=QUIET | {"populate_existing": True}).one_or_none()
    return None if row is None else Claimed(*row)


def receiver(session: Session, delivery: WebhookDelivery) -> WebhookEndpoint | None:
    """The delivery's endpoint. None: it was deleted or disabled meanwhile."""
    endpoint = session.get(WebhookEndpoint, delivery.endpoint_id)
    return endpoint if endpoint is not None and endpoint.enabled else None


def give_up(session: Session, delivery: WebhookDelivery) -> bool:
    """End a delivery without an attempt. False: the claim is stale."""
    return _write(session, delivery, state="failed", due_at=None)


def record(
    session: Session,
    delivery: WebhookDelivery,
    endpoint: WebhookEndpoint,
    attempt: Attempt,
    backoff_seconds: Sequence[float],
) -> bool:
    """Record an attempt. The delivery is done, due after a pause, or given up. False: the claim is stale."""
    if attempt.status_code == 410:
        _disable(session, endpoint)
    attempts = [*delivery.attempts, attempt.model_dump(mode="json")][-MAX_ATTEMPTS_KEPT:]
    if attempt.succeeded:
        return _write(session, delivery, state="delivered", due_at=None, attempts=attempts)
    failed: dict[str, Any] = {"attempts": attempts, "failures": delivery.failures + 1}
    is_last = delivery.failures >= len(backoff_seconds)
    if is_last or receiver(session, delivery) is None:
        return _write(session, delivery, state="failed", due_at=None, **failed)
    pause_seconds = backoff_seconds[delivery.failures] * RANDOM.uniform(*JITTER)
    return _write(session, delivery, state="pending", due_at=db_now() + pause_seconds, **failed)


def _disable(session: Session, endpoint: WebhookEndpoint) -> None:
    """Disable an endpoint that answered 410 Gone, unless its URL was changed meanwhile."""
    disabled = session.scalar(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint.id, WebhookEndpoint.url == endpoint.url)
        .where(WebhookEndpoint.enabled)
        .values(enabled=False, disabled_reason="It answered 410 Gone.")
        .returning(WebhookEndpoint.id)
        .execution_options(synchronize_session=False)
    )
    if disabled is not None:
        repository.end_pending(session, endpoint.id)
        audit.record(session, Principal(endpoint.tenant, SENDER), "webhook.disable", endpoint.id)


def _write(session: Session, delivery: WebhookDelivery, **values: object) -> bool:
    return LEASES.write(session, delivery.id, number=delivery.claim, **values)
