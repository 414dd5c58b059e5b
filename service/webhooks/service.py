"""What may be done with webhooks: register, read, change, rotate, delete, test; read the log, send again.

Boundary: decides and opens transactions; the network is reached between them, by few requests at a time.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable

from sqlalchemy.orm import Session

from grpo_engine.outbound.addresses import Outside, RefusedUrl, check_destination
from service.jobs.store.webhook_events import EventType
from service.platform import audit
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.errors import InvalidRequest, NotFound
from service.platform.ids import new_id
from service.platform.locks import lock_tenant
from service.platform.principal import Principal
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.settings import Settings
from service.web.limits import ConcurrencyLimit
from service.web.pagination import unknown_cursor
from service.webhooks import outbox, repository, sending
from service.webhooks.schemas import (
    DeliveryRead,
    WebhookCreate,
    WebhookRead,
    WebhookTested,
    WebhookUpdate,
    WebhookWithSecret,
)
from service.webhooks.views import delivery_read, endpoint_read, endpoint_with_secret

MAX_ENDPOINTS = 20
"""Of one tenant."""
OLD_SECRET_SECONDS = 24 * 3600.0
SECRET_BYTES = 32
_receiver_limit = ConcurrencyLimit("requests to webhook receivers", per_tenant=4, overall=8)
"""For requests that wait for a receiver or a name server."""


class Webhooks:
    """The webhooks of one deployment, as one principal sees them in one request."""

    def __init__(self, database: Database, settings: Settings, principal: Principal, request_id: str) -> None:
        self._database = database
        self._outside = Outside.listed(settings.allowed_hosts)
        self._principal = principal
        self._request_id = request_id

    def create(self, asked: WebhookCreate, *, is_retry: bool = False) -> WebhookWithSecret:
        """A new endpoint, or the one that the same request made whose answer was lost.

        Raises InvalidRequest for a URL that leads inside, and at the tenant's limit.
        """
        self._check_url(asked.url)
        row = WebhookEndpoint(
            id=new_id("we", "_"),
            tenant=self._principal.tenant,
            name=asked.name,
            url=asked.url,
            event_types=_as_text(asked.event_types),
            secret=_new_secret(),
        )
        with self._database.transaction() as session:
            lock_tenant(session, self._principal.tenant)
            if is_retry and (made := repository.made_lately(session, row)):
                return endpoint_with_secret(made)
            if repository.num_endpoints(session, self._principal.tenant) >= MAX_ENDPOINTS:
                message = f"There are {MAX_ENDPOINTS} webhook endpoints, the limit here: delete one."
                raise InvalidRequest(message, code="webhook_limit")
            session.add(row)
            session.flush()
            self._note(session, "create", row.id)
            session.refresh(row)
        return endpoint_with_secret(row)

    def page(self, *, after: str | None, limit: int) -> list[WebhookRead]:
        """Newest first, `limit` + 1 at most."""
        tenant = self._principal.tenant
        with self._database.reading() as session:
            last = None if after is None else repository.find(session, tenant, after)
            if after is not None and last is None:
                raise unknown_cursor(after)
            rows = repository.page(session, tenant, after=last, limit=limit)
        return [endpoint_read(row) for row in rows]

    def read(self, endpoint_id: str) -> WebhookRead:
        with self._database.reading() as session:
            return endpoint_read(self._found(session, endpoint_id))

    def update(self, endpoint_id: str, asked: WebhookUpdate) -> WebhookRead:
        """Change what was given. What is still to be sent goes to the new URL, or nowhere once disabled."""
        given = asked.model_dump(exclude_none=True)
        if asked.url is not None:
            self._check_url(asked.url)
        if asked.event_types is not None:
            given["event_types"] = _as_text(asked.event_types)
        if asked.enabled is not None:
            given["disabled_reason"] = None
        with self._database.transaction() as session:
            row = self._found(session, endpoint_id, lock=True)
            for name, value in given.items():
                setattr(row, name, value)
            if not row.enabled:
                repository.end_pending(session, row.id)
            return endpoint_read(self._changed(session, "update", row))

    def delete(self, endpoint_id: str) -> None:
        """The endpoint, its secrets and its log."""
        with self._database.transaction() as session:
            row = self._found(session, endpoint_id, lock=True)
            repository.delete_endpoint(session, row)
            self._note(session, "delete", row.id)

    def rotate(self, endpoint_id: str, *, keep_old: bool) -> WebhookWithSecret:
        """A new secret; the old one signs beside it for a day where it is kept."""
        with self._database.transaction() as session:
            row = self._found(session, endpoint_id, lock=True)
            row.previous_secret = row.secret if keep_old else None
            row.previous_secret_until = db_now() + OLD_SECRET_SECONDS if keep_old else None  # type: ignore[assignment]
            row.secret = _new_secret()
            return endpoint_with_secret(self._changed(session, "rotate_secret", row))

    def test(self, endpoint_id: str, event_type: EventType | None) -> WebhookTested:
        """Send an event now and once, and tell how the endpoint answered. InvalidRequest where it did not."""
        with _receiver_limit.slot(self._principal.tenant):
            with self._database.transaction() as session:
                endpoint = self._enabled(session, endpoint_id)
                type_ = event_type or endpoint.event_types.split()[0]
                claimed = outbox.claim_test(session, endpoint, type_)
                self._note(session, "test", endpoint.id)
            attempt = sending.send(endpoint, claimed, self._outside)
            with self._database.transaction() as session:
                outbox.record(session, claimed.delivery, endpoint, attempt, backoff_seconds=())
        if attempt.status_code is None:
            # OpenAI's clients know no result without a status, and a 4xx is what they do not send again
            message = f"The endpoint did not answer: {attempt.error}"
            raise InvalidRequest(message, param="url", code="webhook_no_answer")
        return WebhookTested(
            webhook_endpoint_id=endpoint.id,
            event_type=type_,
            status_code=attempt.status_code,
            error=attempt.error,
            delivery_id=claimed.delivery.id,
        )

    def deliveries(self, endpoint_id: str, *, after: str | None, limit: int) -> list[DeliveryRead]:
        """Newest first, `limit` + 1 at most."""
        with self._database.reading() as session:
            self._found(session, endpoint_id)
            last = None if after is None else self._find_delivery(session, endpoint_id, after)
            if after is not None and last is None:
                raise unknown_cursor(after)
            rows = repository.page_of_deliveries(session, endpoint_id, after=last, limit=limit)
        return [delivery_read(row) for row in rows]

    def redeliver(self, endpoint_id: str, delivery_id: str) -> DeliveryRead:
        """Send it (again) soon, under the same id, and again after pauses as if it were new."""
        with self._database.transaction() as session:
            self._enabled(session, endpoint_id)
            row = self._find_delivery(session, endpoint_id, delivery_id, lock=True)
            if row is None:
                message = f"There is no delivery {delivery_id}."
                raise NotFound(message, param="delivery_id", code="delivery_not_found")
            row.state, row.failures = "pending", 0
            row.due_at = db_now()  # type: ignore[assignment]
            self._note(session, "redeliver", endpoint_id)
            session.flush()
            session.refresh(row)
            return delivery_read(row)

    def _check_url(self, url: str) -> None:
        try:
            with _receiver_limit.slot(self._principal.tenant):
                check_destination(url, self._outside)
        except RefusedUrl as error:
            raise InvalidRequest(f"url: {error}.", param="url", code="url_refused") from None

    def _found(self, session: Session, endpoint_id: str, *, lock: bool = False) -> WebhookEndpoint:
        row = repository.find(session, self._principal.tenant, endpoint_id, lock=lock)
        if row is None:
            message = f"There is no webhook endpoint {endpoint_id}."
            raise NotFound(message, param="endpoint_id", code="webhook_not_found")
        return row

    def _enabled(self, session: Session, endpoint_id: str) -> WebhookEndpoint:
        row = self._found(session, endpoint_id)
        if not row.enabled:
            message = f"{endpoint_id} is disabled: nothing is sent to it until you enable it."
            raise InvalidRequest(message, param="endpoint_id", code="webhook_disabled")
        return row

    def _find_delivery(
        self, session: Session, endpoint_id: str, delivery_id: str, *, lock: bool = False
    ) -> WebhookDelivery | None:
        tenant = self._principal.tenant
        return repository.find_delivery(session, tenant, endpoint_id, delivery_id, lock=lock)

    def _changed(self, session: Session, verb: str, row: WebhookEndpoint) -> WebhookEndpoint:
        row.updated_at = db_now()  # type: ignore[assignment]
        self._note(session, verb, row.id)
        session.flush()
        session.refresh(row)
        return row

    def _note(self, session: Session, verb: str, endpoint_id: str) -> None:
        audit.record(session, self._principal, f"webhook.{verb}", endpoint_id, self._request_id)


def _new_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def _as_text(event_types: Iterable[EventType]) -> str:
    return " ".join(sorted(set(event_types)))
