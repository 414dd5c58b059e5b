"""Secrets after several rotations: a lost response never makes a receiver refuse the service's requests."""

from collections.abc import Iterator
from typing import Any

import pytest
import standardwebhooks
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.platform.db import Database
from service.platform.tables.webhooks import WebhookEndpoint
from service.settings import Settings
from tests.service.webhooks.webhook_samples import WEBHOOKS, create
from tests.support.chat_server import Reply, ScriptedServer
from tests.support.webhook_receiver import ALLOWED, verified


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_hosts": ALLOWED})


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _recorded: Reply(status=200)) as server:
        yield server


def rotate(client: TestClient, path: str, *, is_retry: bool = False, **body: Any) -> str:
    """The new secret."""
    headers = {"x-stainless-retry-count": "1"} if is_retry else {}
    answer = client.post(f"{path}/rotate_secret", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["signing_secret"])


def accepted(client: TestClient, path: str, receiver: ScriptedServer, secrets: list[str]) -> list[bool]:
    """Which secrets verify a request that is sent now."""
    assert client.post(f"{path}/test").status_code == 200
    found = []
    for secret in secrets:
        try:
            verified(receiver.requests[-1], secret)
        except standardwebhooks.WebhookVerificationError:
            found.append(False)
        else:
            found.append(True)
    return found


def test_a_retried_rotation_returns_the_secret_of_the_first_request(
    client: TestClient, receiver: ScriptedServer, database: Database
) -> None:
    created = create(client, url=receiver.url)
    path = f"{WEBHOOKS}/{created['id']}"
    new = rotate(client, path, is_retry=True)
    assert [rotate(client, path, is_retry=True) for _ in range(3)] == [new] * 3
    assert accepted(client, path, receiver, [created["signing_secret"], new]) == [True, True]
    with database.transaction() as session:
        earlier = WebhookEndpoint.previous_secret_until - 601
        session.execute(update(WebhookEndpoint).values(previous_secret_until=earlier))
    assert rotate(client, path, is_retry=True) != new


def test_a_retry_of_a_rotation_that_ends_the_old_secret_ends_it(
    client: TestClient, receiver: ScriptedServer
) -> None:
    created = create(client, url=receiver.url)
    path = f"{WEBHOOKS}/{created['id']}"
    kept = rotate(client, path)
    new = rotate(client, path, is_retry=True, keep_old_secret_active_for_24_hours=False)
    assert accepted(client, path, receiver, [created["signing_secret"], kept, new]) == [False, False, True]


def test_the_two_latest_old_secrets_still_sign_after_repeated_rotations(
    client: TestClient, receiver: ScriptedServer, database: Database
) -> None:
    created = create(client, url=receiver.url)
    path = f"{WEBHOOKS}/{created['id']}"
    secrets = [created["signing_secret"], *(rotate(client, path) for _ in range(2))]
    assert accepted(client, path, receiver, secrets) == [True, True, True]
    secrets.append(rotate(client, path))
    assert accepted(client, path, receiver, secrets) == [False, True, True, True]
    with database.transaction() as session:
        session.execute(update(WebhookEndpoint).values(previous_secret_until=0.0))
    secrets.append(rotate(client, path))
    assert accepted(client, path, receiver, secrets) == [False, False, False, True, True]
