"""Standard Webhooks signatures (standardwebhooks.com): they prove sender, content and time of a request."""

import base64
import binascii
import hmac
import time
from collections.abc import Sequence

from pydantic import SecretStr


def secret_bytes(secret: SecretStr) -> bytes:
    """Key of a Standard Webhooks secret. Raises ValueError."""
    try:
        return base64.b64decode(secret.get_secret_value().removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret must be base64, with or without the prefix whsec_") from None


def signature_headers(
    secrets: Sequence[SecretStr], message_id: str, body: bytes, now: float | None = None
) -> dict[str, str]:
    """Headers with a base64 HMAC-SHA256 over `id.timestamp.body` for each secret; any of them verifies.

    `now` in Unix seconds; None: this machine's clock. Raises ValueError.
    """
    timestamp = str(int(time.time() if now is None else now))
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(secret_bytes(secret), signed, "sha256") for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }
