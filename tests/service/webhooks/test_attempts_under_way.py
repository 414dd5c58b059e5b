"""Which delivery is sent next, and what a user changes while a sender waits for the response."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.jobs.model.states import JobState
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.webhooks import WebhookDelivery
from service.settings import Settings
from service.webhooks import outbox
from tests.service.job_samples import add_job
from tests.service.webhooks.webhook_samples import WEBHOOKS, create
from tests.support.chat_server import Reply, ScriptedServer
from tests.support.webhook_receiver import ALLOWED, deliveries
from worker.webhook_sender import Sender

Change = Callable[[], None]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Local receivers are allowed; one retry, after an hour."""
    return settings.model_copy(update={"allowed_hosts": ALLOWED, "webhook_backoff_seconds": [3600.0]})


def cancel_a_job(client: TestClient, database: Database) -> None:
    job_id = add_job(database, JobState.QUEUED)
    assert client.post(f"/v1/fine_tuning/jobs/{job_id}/cancel").status_code == 200


@pytest.mark.parametrize("status", [200, 500])
def test_an_event_that_is_redelivered_during_an_attempt_is_sent_again(
    client: TestClient, database: Database, settings: Settings, status: int
) -> None:
    changes: list[Change] = []

    def answer(_recorded: object) -> Reply:
        if changes:
            changes.pop()()
            return Reply(status=status)
        return Reply(status=200)

    with ScriptedServer(answer) as server:
        path = f"{WEBHOOKS}/{_endpoint(client, server.url)}"
        cancel_a_job(client, database)
        again = f"{path}/deliveries/{deliveries(database)[0].id}/redeliver"
        changes.append(lambda: _done(client.post(again).status_code))
        sender = Sender(database, settings)
        assert [sender.send_one() for _ in range(3)] == [True, True, False]
        assert len(server.requests) == 2
    assert deliveries(database)[0].state == "delivered"


def test_disabling_an_endpoint_during_an_attempt_ends_its_retries(
    client: TestClient, database: Database, settings: Settings
) -> None:
    def answer(_recorded: object) -> Reply:
        _done(client.post(path, json={"enabled": False}).status_code)
        return Reply(status=500)

    with ScriptedServer(answer) as server:
        path = f"{WEBHOOKS}/{_endpoint(client, server.url)}"
        cancel_a_job(client, database)
        assert Sender(database, settings).send_one()
    ended = deliveries(database)[0]
    assert (ended.state, ended.due_at, len(ended.attempts)) == ("failed", None, 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"url": f"http://{ALLOWED}:9/"}, (True, None, "pending")),
        ({"enabled": False}, (False, None, "failed")),
    ],
)
def test_an_answer_410_disables_no_endpoint_that_was_changed_during_the_attempt(
    client: TestClient, database: Database, settings: Settings, change: Any, expected: Any
) -> None:
    def answer(_recorded: object) -> Reply:
        _done(client.post(path, json=change).status_code)
        return Reply(status=410)

    with ScriptedServer(answer) as server:
        path = f"{WEBHOOKS}/{_endpoint(client, server.url)}"
        cancel_a_job(client, database)
        assert Sender(database, settings).send_one()
    found = client.get(path).json()
    assert (found["enabled"], found["disabled_reason"], deliveries(database)[0].state) == expected


def test_the_delivery_that_is_due_for_longest_is_sent_first_unless_its_endpoint_is_busy(
    client: TestClient, database: Database
) -> None:
    free, busy = (_endpoint(client, f"http://{ALLOWED}:9/") for _ in range(2))
    cancel_a_job(client, database)
    cancel_a_job(client, database)
    rows = deliveries(database)
    with database.transaction() as session:
        for seconds, row in enumerate(rows):
            mine = update(WebhookDelivery).where(WebhookDelivery.id == row.id)
            session.execute(mine.values(due_at=db_now() - seconds))
        claims = [outbox.claim_due(session, busy_endpoints=[busy]) for _ in range(3)]
    expected = [row.id for row in reversed(rows) if row.endpoint_id == free]
    assert [claim and claim.delivery.id for claim in claims] == [*expected, None]


def _endpoint(client: TestClient, url: str) -> str:
    return str(create(client, url=url, event_types=["fine_tuning.job.cancelled"])["id"])


def _done(status: int) -> None:
    assert status == 200
