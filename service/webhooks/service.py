"""Clients' operations on webhooks: register, read, change, rotate, delete, test, read the log, send again.

Boundary: decides and opens transactions; none is open during a request to a receiver.
"""

import base64
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from grpo_engine.outbound.addresses import AllowedHosts, RefusedUrl, check_destination
from service.jobs.store.repository import DEDUPLICATION_SECONDS
from service.jobs.store.webhook_events import EventType
from service.platform import audit
from service.platform.clock import db_now, read_clock
from service.platform.db import lock_tenant
from service.platform.errors import InvalidRequest, NotFound
from service.platform.ids import new_id
from service.platform.pages import newest_page
from service.platform.principal import Principal
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.web.dependencies import DatabaseDep, SettingsDep
from service.web.limits import ConcurrencyLimit
from service.web.validation import shortened
from service.webhooks import outbox, repository, sending
from service.webhooks.schemas import (
    DeliveryRead,
    SecretRotate,
    WebhookCreate,
    WebhookRead,
    WebhookTested,
    WebhookUpdate,
    WebhookWithSecret,
)

MAX_ENDPOINTS = 20
"""Maximum endpoints of a tenant."""
OLD_SECRET_SECONDS = 24 * 3600.0
MAX_OLD_SECRETS = 2
"""Maximum number of old secrets that still sign: as many as the column holds."""
SECRET_BYTES = 32
_receiver_limit = ConcurrencyLimit("requests to webhook receivers", per_tenant=4, overall=8)
"""Limits requests that wait for a receiver or a name server."""


@dataclass(frozen=True)
class Webhooks:
    """The webhooks of one deployment."""

    database: DatabaseDep
    settings: SettingsDep

    def create(
        self, principal: Principal, body: WebhookCreate, *, is_retry: bool = False
    ) -> WebhookWithSecret:
        """A new endpoint, or for a retry the one that the first request made.

        Raises InvalidRequest for a URL of a private address, and at the tenant's limit.
        """
        self._check_url(principal.tenant, body.url)
        row = WebhookEndpoint(
            id=new_id("we", "_"),
            tenant=principal.tenant,
            name=body.name,
            url=body.url,
            event_types=_as_text(body.event_types),
            secret=_new_secret(),
        )
        with self.database.transaction() as session:
            lock_tenant(session, row.tenant)
            if is_retry and (made := repository.find_equal(session, row)):
                return WebhookWithSecret.model_validate(made)
            if repository.num_endpoints(session, row.tenant) >= MAX_ENDPOINTS:
                message = f"Limit of {MAX_ENDPOINTS} webhook endpoints reached. Delete one."
                raise InvalidRequest(message, code="webhook_limit")
            session.add(row)
            _record(session, principal, "create", row)
            return WebhookWithSecret.model_validate(row)

    def page(self, tenant: str, *, after: str | None, limit: int) -> list[WebhookRead]:
        """Newest first, `limit` + 1 at most. Raises NotFound for an unknown `after`."""
        with self.database.reading() as session:
            mine = WebhookEndpoint.tenant == tenant
            rows = newest_page(session, WebhookEndpoint, mine, after=after, limit=limit)
        return [WebhookRead.model_validate(row) for row in rows]

    def read(self, tenant: str, endpoint_id: str) -> WebhookRead:
        with self.database.reading() as session:
            return WebhookRead.model_validate(_require(session, tenant, endpoint_id))

    def update(self, principal: Principal, endpoint_id: str, body: WebhookUpdate) -> WebhookRead:
        """Change the given fields. Pending deliveries go to the new URL, or end if it is disabled."""
        given = body.model_dump(exclude_none=True)
        if body.url is not None:
            self._check_url(principal.tenant, body.url)
        if body.event_types is not None:
            given["event_types"] = _as_text(body.event_types)
        if body.enabled is not None:
            given["disabled_reason"] = None
        with self.database.transaction() as session:
            row = _require(session, principal.tenant, endpoint_id, lock=True)
            for name, value in given.items():
                setattr(row, name, value)
            if not row.enabled:
                repository.end_pending(session, row.id)
            _record(session, principal, "update", row)
            return WebhookRead.model_validate(row)

    def delete(self, principal: Principal, endpoint_id: str) -> None:
        """Delete the endpoint, its secrets and its log."""
        with self.database.transaction() as session:
            row = _require(session, principal.tenant, endpoint_id, lock=True)
            repository.delete_endpoint(session, row)
            _record(session, principal, "delete", row)

    def rotate(
        self, principal: Principal, endpoint_id: str, body: SecretRotate, *, is_retry: bool = False
    ) -> WebhookWithSecret:
        """A new secret, or for a retry the one that the first request made.

        For a day, requests may be signed with the old ones as well.
        """
        keeps_old = body.keep_old_secret_active_for_24_hours
        with self.database.transaction() as session:
            row = _require(session, principal.tenant, endpoint_id, lock=True)
            now = read_clock(session)
            if is_retry and keeps_old and _was_just_rotated(row, now):
                return WebhookWithSecret.model_validate(row)
            old = sending.valid_secrets(row, now)[:MAX_OLD_SECRETS] if keeps_old else []
            row.previous_secret = " ".join(old) or None
            row.previous_secret_until = now + OLD_SECRET_SECONDS if old else None
            row.secret = _new_secret()
            _record(session, principal, "rotate_secret", row)
            return WebhookWithSecret.model_validate(row)

    def test(self, principal: Principal, endpoint_id: str, event_type: EventType | None) -> WebhookTested:
        """Send one event now and return the receiver's response. Raises InvalidRequest if there is none."""
        with _receiver_limit.slot(principal.tenant):
            with self.database.transaction() as session:
                endpoint = _require_enabled(session, principal.tenant, endpoint_id)
                type_ = event_type or endpoint.event_types.split()[0]
                claimed = outbox.claim_test(session, endpoint, type_)
                _record(session, principal, "test", endpoint)
            attempt = sending.send(endpoint, claimed, self._allowed_hosts)
            with self.database.transaction() as session:
                outbox.record(session, claimed.delivery, endpoint, attempt, backoff_seconds=())
        if attempt.status_code is None:
            # OpenAI's clients require a status in the result, and do not repeat a request after a 4xx
            message = f"The endpoint did not answer: {attempt.error}"
            raise InvalidRequest(message, param="url", code="webhook_no_answer")
        return WebhookTested(
            webhook_endpoint_id=endpoint.id,
            event_type=type_,
            status_code=attempt.status_code,
            error=attempt.error,
            delivery_id=claimed.delivery.id,
        )

    def deliveries(
        self, tenant: str, endpoint_id: str, *, after: str | None, limit: int
    ) -> list[DeliveryRead]:
        """Newest first, `limit` + 1 at most. Raises NotFound for an unknown `after`."""
        with self.database.reading() as session:
            _require(session, tenant, endpoint_id)
            of_endpoint = WebhookDelivery.endpoint_id == endpoint_id
            rows = newest_page(session, WebhookDelivery, of_endpoint, after=after, limit=limit)
        return [DeliveryRead.model_validate(row) for row in rows]

    def redeliver(self, principal: Principal, endpoint_id: str, delivery_id: str) -> DeliveryRead:
        """Make a delivery due now, under the same id and with all its retries."""
        with self.database.transaction() as session:
            endpoint = _require_enabled(session, principal.tenant, endpoint_id)
            row = repository.lock_delivery(session, endpoint_id, delivery_id)
            if row is None:
                message = f"There is no delivery {delivery_id}."
                raise NotFound(message, param="delivery_id", code="delivery_not_found")
            row.state, row.failures = "pending", 0
            row.claim += 1  # the result of an attempt that is under way must not overwrite this request
            row.due_at = db_now()  # type: ignore[assignment]
            _record(session, principal, "redeliver", endpoint)
            return DeliveryRead.model_validate(row)

    @property
    def _allowed_hosts(self) -> AllowedHosts:
        return AllowedHosts.listed(self.settings.allowed_hosts)

    def _check_url(self, tenant: str, url: str) -> None:
        try:
            with _receiver_limit.slot(tenant):
                check_destination(url, self._allowed_hosts)
        except RefusedUrl as error:
            message = f"url: {error}, got {shortened(url)}."
            raise InvalidRequest(message, param="url", code="url_refused") from None


def _require(session: Session, tenant: str, endpoint_id: str, *, lock: bool = False) -> WebhookEndpoint:
    """The tenant's endpoint. Raises NotFound."""
    row = repository.find(session, tenant, endpoint_id, lock=lock)
    if row is None:
        message = f"There is no webhook endpoint {endpoint_id}."
        raise NotFound(message, param="endpoint_id", code="webhook_not_found")
    return row


def _require_enabled(session: Session, tenant: str, endpoint_id: str) -> WebhookEndpoint:
    row = _require(session, tenant, endpoint_id)
    if not row.enabled:
        message = f"{endpoint_id} is disabled: nothing is sent to it until you enable it."
        raise InvalidRequest(message, param="endpoint_id", code="webhook_disabled")
    return row


def _was_just_rotated(row: WebhookEndpoint, now: float) -> bool:
    """Whether a rotation within the last ten minutes kept the old secret."""
    rotated_at = (row.previous_secret_until or 0.0) - OLD_SECRET_SECONDS
    return now - rotated_at < DEDUPLICATION_SECONDS


def _record(session: Session, principal: Principal, verb: str, row: WebhookEndpoint) -> None:
    """Write the changes of this transaction and their audit entry."""
    audit.record(session, principal, f"webhook.{verb}", row.id)
    session.flush()


def _new_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def _as_text(event_types: Iterable[EventType]) -> str:
    return " ".join(sorted(set(event_types)))
