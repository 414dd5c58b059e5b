"""One signed request to an endpoint; `grpo_engine.outbound.web` checks its destination each time.

Boundary: the network and no database.
"""

import json
import time
from typing import Any

from pydantic import SecretStr

from grpo_engine.outbound.addresses import AllowedHosts, RefusedUrl
from grpo_engine.outbound.signing import signature_headers
from grpo_engine.outbound.web import NoAnswer, post
from service.platform.tables.webhooks import WebhookEndpoint
from service.webhooks.outbox import Claimed
from service.webhooks.schemas import Attempt

SEND_SECONDS = 10.0
MAX_ANSWER_BYTES = 65_536
EXCERPT_CHARACTERS = 500


def send(endpoint: WebhookEndpoint, claimed: Claimed, allowed_hosts: AllowedHosts) -> Attempt:
    """One attempt; it also records a receiver that did not answer."""
    body = json.dumps(claimed.delivery.event).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "grpo-webhooks"}
    headers |= signature_headers(
        [SecretStr(secret) for secret in valid_secrets(endpoint, claimed.now)],
        claimed.delivery.id,
        body,
        claimed.now,
    )
    result: dict[str, Any]
    start = time.monotonic()
    try:
        answer = post(
            endpoint.url,
            body,
            headers,
            timeout_seconds=SEND_SECONDS,
            allowed_hosts=allowed_hosts,
            kept_bytes=MAX_ANSWER_BYTES,
        )
    except (RefusedUrl, NoAnswer) as error:
        result = {"error": str(error)}
    else:
        result = {"status_code": answer.status, "response": _excerpt(answer.body)}
        if 300 <= answer.status < 400:
            result["error"] = "Redirects are not followed."
    return Attempt(created_at=int(claimed.now), seconds=round(time.monotonic() - start, 3), **result)


def valid_secrets(endpoint: WebhookEndpoint, now: float) -> list[str]:
    """The secrets that sign a request, newest first."""
    is_old_valid = now < (endpoint.previous_secret_until or 0.0)
    return [endpoint.secret, *((endpoint.previous_secret or "").split() if is_old_valid else ())]


def _excerpt(body: bytes) -> str:
    """The beginning of the body as text without NUL, which PostgreSQL refuses."""
    return body.decode("utf-8", "replace").replace("\x00", "\ufffd")[:EXCERPT_CHARACTERS]
