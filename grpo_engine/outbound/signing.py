"""Standard Webhooks signatures: the receiver knows who sends, that nothing was changed, and when it was sent.

Source: standardwebhooks.com. Boundary: secrets come as `SecretStr`, so that no message or log shows them.
"""

from __future__ import annotations

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
        raise ValueError("a secret is base64, with or without whsec_ before it") from None


def signature_headers(
    secrets: Sequence[SecretStr], message_id: str, body: bytes, now: float | None = None
) -> dict[str, str]:
    """An HMAC-SHA256 over `id.timestamp.body`, in base64, by each secret: any of them verifies.

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
