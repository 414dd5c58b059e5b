"""One signed request to an endpoint. Where it may lead is `grpo_engine.outbound.web`'s to say, each time.

Boundary: the network and no database. An answer is a status and a short excerpt; redirects are not followed.
"""

from __future__ import annotations

import time

from pydantic import SecretStr

from grpo_engine.outbound.addresses import Outside, RefusedUrl
from grpo_engine.outbound.signing import signature_headers
from grpo_engine.outbound.web import NoAnswer, WebAnswer, post
from service.platform.tables.webhooks import WebhookEndpoint
from service.webhooks import events
from service.webhooks.outbox import Claimed
from service.webhooks.schemas import Attempt

SEND_SECONDS = 10.0
MAX_ANSWER_BYTES = 65_536
EXCERPT_CHARACTERS = 500


def send(endpoint: WebhookEndpoint, claimed: Claimed, outside: Outside) -> Attempt:
    """One attempt; every trouble with the receiver is its outcome."""
    body = events.body(claimed.delivery)
    secrets = _valid_secrets(endpoint, claimed.now)
    headers = {"Content-Type": "application/json", "User-Agent": "grpo-webhooks"}
    headers |= signature_headers(secrets, claimed.delivery.id, body, claimed.now)
    outcome: WebAnswer | Exception
    start = time.monotonic()
    try:
        outcome = post(
            endpoint.url,
            body,
            headers,
            timeout_seconds=SEND_SECONDS,
            outside=outside,
            kept_bytes=MAX_ANSWER_BYTES,
        )
    except (RefusedUrl, NoAnswer) as error:
        outcome = error
    return _attempt(outcome, claimed.now, time.monotonic() - start)


def _valid_secrets(endpoint: WebhookEndpoint, now: float) -> list[SecretStr]:
    secrets = [SecretStr(endpoint.secret)]
    if endpoint.previous_secret is not None and now < (endpoint.previous_secret_until or 0.0):
        secrets.append(SecretStr(endpoint.previous_secret))
    return secrets


def _attempt(outcome: WebAnswer | Exception, now: float, seconds: float) -> Attempt:
    common = {"created_at": int(now), "seconds": round(seconds, 3)}
    if isinstance(outcome, Exception):
        return Attempt(error=str(outcome), **common)
    is_redirect = 300 <= outcome.status < 400
    return Attempt(
        status_code=outcome.status,
        error="Redirects are not followed." if is_redirect else None,
        response=_excerpt(outcome.body),
        **common,
    )


def _excerpt(body: bytes) -> str:
    """Storable: PostgreSQL refuses NUL."""
    return body.decode("utf-8", "replace").replace("\x00", "\ufffd")[:EXCERPT_CHARACTERS]
