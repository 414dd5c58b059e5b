"""Deliveries are sent, retried or given up, with receivers that misbehave."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
import standardwebhooks
from sqlalchemy import select, update

from service.platform.db import Database
from service.platform.tables.core import AuditEntry
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.settings import Settings
from service.webhooks import outbox, sending
from service.webhooks.schemas import Attempt, SecretRotate
from service.webhooks.service import Webhooks
from tests.support.chat_server import Answer, Recorded, Reply, ScriptedServer
from tests.support.webhook_receiver import (
    ALLOWED,
    OWNER,
    clock_of,
    deliveries,
    endpoint,
    make_due,
    register,
    verified,
)
from tests.threads import at_once
from tests.worker.jobs import cancel, insert_job
from worker.webhook_sender import Sender


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Local receivers are allowed; two immediate retries."""
    return settings.model_copy(update={"allowed_hosts": ALLOWED, "webhook_backoff_seconds": [0.0, 0.0]})


@pytest.fixture
def sender(database: Database, settings: Settings) -> Sender:
    return Sender(database, settings)


@pytest.fixture
def end_job(database: Database) -> Callable[..., str]:
    """A job of tenant `acme` that is cancelled before a worker claims it. Returns its id."""

    def end(tenant: str = "acme") -> str:
        job_id = insert_job(database, tenant=tenant)
        cancel(database, job_id, tenant)
        return job_id

    return end


def answering(*answers: Answer) -> Callable[[Recorded], Answer]:
    """Send the replies in turn; repeat the last one."""
    waiting = list(answers)
    return lambda _recorded: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def test_a_failed_attempt_is_repeated_with_the_same_id_and_body(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=500, body="broken"), Reply(status=204))) as server:
        secret = register(database, settings, server.url).signing_secret
        job_id = end_job()
        assert [sender.send_one() for _ in range(3)] == [True, True, False]
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert verified(second, secret).data.id == job_id
    (row,) = deliveries(database)
    assert (row.state, row.due_at, row.id) == ("delivered", None, first.headers["webhook-id"])
    assert [(each["status_code"], each["response"]) for each in row.attempts] == [(500, "broken"), (204, "")]


def test_pauses_follow_the_settings_within_ten_percent(
    database: Database, settings: Settings, end_job: Callable[..., str]
) -> None:
    settings = settings.model_copy(update={"webhook_backoff_seconds": [100.0, 1000.0]})
    with ScriptedServer(answering(Reply(status=503))) as server:
        register(database, settings, server.url)
        end_job()
        for pause in (100, 1000):
            before = clock_of(database)
            assert Sender(database, settings).send_one()
            (row,) = deliveries(database)
            assert row.due_at is not None
            assert before + 0.9 * pause <= row.due_at <= clock_of(database) + 1.1 * pause
            make_due(database)


def test_a_delivery_is_given_up_after_the_last_pause_and_redelivered_with_all_its_retries(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=400))) as server:
        webhook = register(database, settings, server.url)
        end_job()
        for num_attempts in (3, 6):
            while sender.send_one():
                pass
            (row,) = deliveries(database)
            assert (row.state, row.due_at, len(row.attempts)) == ("failed", None, num_attempts)
            Webhooks(database, settings).redeliver(OWNER, webhook.id, row.id)
    assert len(server.requests) == 6


def test_a_redirect_is_a_failure(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering("inside")) as inside:
        away = Reply(status=307, headers={"Location": inside.url})
        with ScriptedServer(answering(away)) as server:
            register(database, settings, server.url)
            end_job()
            assert sender.send_one()
    assert inside.requests == []
    (row,) = deliveries(database)
    assert (row.state, row.attempts[0]["status_code"]) == ("pending", 307)
    assert row.attempts[0]["error"] == "Redirects are not followed."


def test_a_delivery_that_times_out_is_retried(
    database: Database,
    settings: Settings,
    sender: Sender,
    end_job: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "SEND_SECONDS", 0.2)
    with ScriptedServer(answering(Reply(stall=True))) as server:
        register(database, settings, server.url)
        end_job()
        assert sender.send_one()
    (row,) = deliveries(database)
    assert (row.state, row.attempts[0]["status_code"]) == ("pending", None)
    assert row.attempts[0]["error"] == "127.0.0.1 did not answer within 0.2 s"


def test_only_the_start_of_a_long_response_is_read_and_kept(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(body=b"\x00" + b"a" * 2**21))) as server:
        register(database, settings, server.url)
        end_job()
        assert sender.send_one()
    (row,) = deliveries(database)
    assert (row.state, row.attempts[0]["response"]) == ("delivered", "\ufffd" + "a" * 499)


def test_a_410_disables_the_endpoint_and_drops_its_deliveries(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=410))) as server:
        webhook = register(database, settings, server.url)
        end_job()
        end_job()
        assert sender.send_one()
        end_job()
        assert not sender.send_one()
    assert len(server.requests) == 1
    assert [row.state for row in deliveries(database)] == ["failed", "failed"]
    row = endpoint(database, webhook.id)
    assert (row.enabled, row.disabled_reason) == (False, "It answered 410 Gone.")
    with database.reading() as session:
        recorded = session.execute(select(AuditEntry.action, AuditEntry.key_id, AuditEntry.object_id)).all()
    assert recorded[-1] == ("webhook.disable", "webhooks", webhook.id)


def test_a_delivery_to_a_deleted_endpoint_is_given_up(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    """A job may end while its endpoint is being deleted."""
    register(database, settings, "http://127.0.0.1:9/")
    end_job()
    with database.transaction() as session:
        session.execute(update(WebhookEndpoint).values(id="we_other"))
    assert sender.send_one()
    assert [(row.state, row.attempts) for row in deliveries(database)] == [("failed", [])]


def test_a_redelivery_has_the_same_id(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=200))) as server:
        webhook = register(database, settings, server.url)
        end_job()
        assert sender.send_one()
        (row,) = deliveries(database)
        again = Webhooks(database, settings).redeliver(OWNER, webhook.id, row.id)
        assert (again.status, again.id) == ("pending", row.id)
        assert sender.send_one()
    assert [request.headers["webhook-id"] for request in server.requests] == [row.id, row.id]
    assert len(deliveries(database)[0].attempts) == 2


def test_the_newest_twenty_attempts_are_kept(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=200))) as server:
        register(database, settings, server.url)
        end_job()
        with database.transaction() as session:
            old = [Attempt(created_at=n, seconds=0.1, status_code=500).model_dump() for n in range(20)]
            session.execute(update(WebhookDelivery).values(attempts=old))
        assert sender.send_one()
    (row,) = deliveries(database)
    assert [each["created_at"] for each in row.attempts[:-1]] == list(range(1, 20))
    assert row.attempts[-1]["status_code"] == 200


def test_after_a_rotation_both_secrets_verify_for_a_day(
    database: Database, settings: Settings, sender: Sender, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=200))) as server:
        webhook = register(database, settings, server.url)
        new = Webhooks(database, settings).rotate(OWNER, webhook.id, SecretRotate()).signing_secret
        end_job()
        assert sender.send_one()
        with database.transaction() as session:
            day = WebhookEndpoint.previous_secret_until - 24 * 3600
            session.execute(update(WebhookEndpoint).values(previous_secret_until=day))
        end_job()
        assert sender.send_one()
    first, second = server.requests
    assert verified(first, webhook.signing_secret) == verified(first, new)
    verified(second, new)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        verified(second, webhook.signing_secret)


def test_signatures_use_the_database_clock(
    database: Database,
    settings: Settings,
    sender: Sender,
    end_job: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(answering(Reply(status=200))) as server:
        secret = register(database, settings, server.url).signing_secret
        end_job()
        with monkeypatch.context() as patch:
            real = time.time
            patch.setattr(time, "time", lambda: real() + 3600)
            assert sender.send_one()
    assert verified(server.requests[0], secret).object == "event"


def test_concurrent_senders_send_each_delivery_once(
    database: Database, settings: Settings, end_job: Callable[..., str]
) -> None:
    with ScriptedServer(answering(Reply(status=200))) as server:
        register(database, settings, server.url)
        for _ in range(20):
            end_job()

        def race(_number: int) -> None:
            sender = Sender(database, settings)
            while sender.send_one():
                pass

        at_once(4, race)
    sent = Counter(request.headers["webhook-id"] for request in server.requests)
    assert sent == Counter(row.id for row in deliveries(database))
    assert {row.state for row in deliveries(database)} == {"delivered"}


def test_a_stale_claim_records_nothing(
    database: Database, settings: Settings, end_job: Callable[..., str]
) -> None:
    register(database, settings, "http://127.0.0.1:9/")
    end_job()
    with database.transaction() as session:
        old = outbox.claim_due(session)
        assert outbox.claim_due(session) is None
    make_due(database)
    with database.transaction() as session:
        assert outbox.claim_due(session) is not None
    assert old is not None
    row = endpoint(database, old.delivery.endpoint_id)
    with database.transaction() as session:
        assert not outbox.record(session, old.delivery, row, Attempt(created_at=0, seconds=0), [])
    assert deliveries(database)[0].attempts == []
