"""What tests of webhooks over HTTP need."""

from typing import Any

from fastapi.testclient import TestClient

WEBHOOKS = "/v1/webhook_endpoints"
NOWHERE = "http://127.0.0.1:9/"
SUCCEEDED = "fine_tuning.job.succeeded"


def create(client: TestClient, **fields: Any) -> dict[str, Any]:
    """A new endpoint, for jobs that succeed."""
    answer = client.post(WEBHOOKS, json={"url": NOWHERE, "event_types": [SUCCEEDED]} | fields)
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    return created
