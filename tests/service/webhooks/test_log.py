"""The log of deliveries over HTTP and in the command; tests and redeliveries."""

import json
import threading
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from service.cli import main
from service.cli.terminal.errors import CommandError
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from service.webhooks import sending
from tests.conftest import on_sqlite
from tests.service.job_samples import add_job
from tests.service.web.error_samples import error_of
from tests.service.webhooks.webhook_samples import WEBHOOKS, create
from tests.support.chat_server import Recorded, Reply, ScriptedServer
from tests.support.webhook_receiver import ALLOWED, deliveries, verified
from worker.webhook_sender import Sender

CANCELLED = "fine_tuning.job.cancelled"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_hosts": ALLOWED})


def cancel_a_job(client: TestClient, database: Database) -> str:
    job_id = add_job(database, JobState.QUEUED)
    assert client.post(f"/v1/fine_tuning/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    return job_id


def test_the_log_lists_past_and_pending_attempts(
    client: TestClient, database: Database, settings: Settings
) -> None:
    with ScriptedServer(lambda _recorded: Reply(status=503, body="busy")) as server:
        webhook_id = create(client, url=server.url, event_types=[CANCELLED])["id"]
        job_id = cancel_a_job(client, database)
        assert Sender(database, settings).send_one()
    (listed,) = client.get(f"{WEBHOOKS}/{webhook_id}/deliveries").json()["data"]
    (attempt,) = listed["attempts"]
    assert (listed["status"], listed["id"]) == ("pending", server.requests[0].headers["webhook-id"])
    assert listed["event"] == json.loads(server.requests[0].body)
    assert listed["event"]["data"] == {"id": job_id}
    assert listed["next_attempt_at"] >= attempt["created_at"]
    assert (attempt["status_code"], attempt["response"], attempt["error"]) == (503, "busy", None)


def test_deliveries_are_listed_newest_first_over_pages(client: TestClient, database: Database) -> None:
    path = f"{WEBHOOKS}/{create(client, event_types=[CANCELLED])['id']}/deliveries"
    jobs = [cancel_a_job(client, database) for _ in range(3)]
    first = client.get(path, params={"limit": 2}).json()
    rest = client.get(path, params={"limit": 2, "after": first["last_id"]}).json()
    assert [each["event"]["data"]["id"] for each in first["data"] + rest["data"]] == jobs[::-1]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert error_of(client.get(path, params={"after": "evt_none"}), 404)["param"] == "after"


@on_sqlite
def test_a_test_returns_the_receivers_response(client: TestClient) -> None:
    with ScriptedServer(lambda _recorded: Reply(status=500)) as server:
        created = create(client, url=server.url)
        path = f"{WEBHOOKS}/{created['id']}"
        tested = client.post(f"{path}/test").json()
    event = verified(server.requests[0], created["signing_secret"])
    assert (event.type, event.data.id) == (tested["event_type"], "ftjob-test")
    assert (tested["success"], tested["status_code"], tested["error"]) == (True, 500, None)
    (listed,) = client.get(f"{path}/deliveries").json()["data"]
    assert (listed["id"], listed["status"]) == (tested["delivery_id"], "failed")
    assert listed["next_attempt_at"] is None


@on_sqlite
def test_a_test_of_an_unreachable_receiver_is_an_error(client: TestClient) -> None:
    webhook_id = create(client)["id"]
    path = f"{WEBHOOKS}/{webhook_id}/test"
    error = error_of(client.post(path, json={"event_type": CANCELLED}))
    assert (error["code"], error["param"]) == ("webhook_no_answer", "url")
    assert "refused" in error["message"]
    (listed,) = client.get(f"{WEBHOOKS}/{webhook_id}/deliveries").json()["data"]
    assert (listed["status"], listed["attempts"][0]["status_code"]) == ("failed", None)


@on_sqlite
def test_the_number_of_concurrent_webhook_tests_is_limited(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_SECONDS", 60.0)
    held, go_on = threading.Semaphore(0), threading.Event()

    def hold(_recorded: Recorded) -> Reply:
        held.release()
        go_on.wait(30)
        return Reply(status=200)

    with ScriptedServer(hold) as server:
        path = f"{WEBHOOKS}/{create(client, url=server.url)['id']}/test"
        statuses: list[int] = []
        tests = [
            threading.Thread(target=lambda: statuses.append(client.post(path).status_code)) for _ in range(4)
        ]
        for one in tests:
            one.start()
        assert all(held.acquire(timeout=30) for _ in tests)
        refused = client.post(path)
        go_on.set()
        for one in tests:
            one.join()
    assert error_of(refused, 429)["type"] == "rate_limit_error"
    assert refused.headers["retry-after"] == "5"
    assert statuses == [200] * 4


def test_an_event_can_be_redelivered(client: TestClient, database: Database, settings: Settings) -> None:
    answers = [Reply(status=410), Reply(status=200)]
    with ScriptedServer(lambda _recorded: answers.pop(0)) as server:
        path = f"{WEBHOOKS}/{create(client, url=server.url, event_types=[CANCELLED])['id']}"
        cancel_a_job(client, database)
        assert Sender(database, settings).send_one()
        delivery_id = deliveries(database)[0].id
        again = f"{path}/deliveries/{delivery_id}/redeliver"
        assert error_of(client.post(again))["code"] == "webhook_disabled"
        assert client.post(path, json={"enabled": True}).json()["disabled_reason"] is None
        assert client.post(again).json()["status"] == "pending"
        assert Sender(database, settings).send_one()
    assert [each.headers["webhook-id"] for each in server.requests] == [delivery_id] * 2
    unknown = client.post(f"{path}/deliveries/evt_none/redeliver")
    assert error_of(unknown, 404)["code"] == "delivery_not_found"


def test_disabling_ends_only_pending_deliveries_and_a_new_url_receives_them(
    client: TestClient, database: Database, settings: Settings
) -> None:
    kept, ended = (create(client, event_types=[CANCELLED])["id"] for _ in range(2))
    cancel_a_job(client, database)
    client.post(f"{WEBHOOKS}/{ended}", json={"enabled": False})
    with ScriptedServer(lambda _recorded: Reply(status=200)) as server:
        client.post(f"{WEBHOOKS}/{kept}", json={"url": server.url})
        assert [Sender(database, settings).send_one() for _ in range(2)] == [True, False]
    client.post(f"{WEBHOOKS}/{kept}", json={"enabled": False})
    states = {row.endpoint_id: (row.state, len(row.attempts)) for row in deliveries(database)}
    assert states == {kept: ("delivered", 1), ended: ("failed", 0)}


def test_deleting_an_endpoint_deletes_its_log_alone(client: TestClient, database: Database) -> None:
    kept, deleted = (create(client, event_types=[CANCELLED])["id"] for _ in range(2))
    cancel_a_job(client, database)
    assert client.delete(f"{WEBHOOKS}/{deleted}").status_code == 200
    assert [row.endpoint_id for row in deliveries(database)] == [kept]


@on_sqlite
def test_the_command_registers_tests_lists_and_removes(
    settings: Settings, server_url: str, api_key: str
) -> None:
    given = {"GRPO_URL": server_url, "GRPO_API_KEY": api_key, "GRPO_HOME": str(settings.home)}

    def grpo(*arguments: str) -> Any:
        return CliRunner().invoke(main.app, ["webhooks", *arguments], env=given)

    def grpo_json(*arguments: str) -> Any:
        return json.loads(grpo(*arguments, "--json").stdout)

    with ScriptedServer(lambda _recorded: Reply(status=204)) as server:
        added = grpo_json("add", server.url, "--event", CANCELLED, "--name", "ops")
        tested = grpo_json("test", added["id"])
        again = grpo_json("redeliver", added["id"], tested["delivery_id"])
    assert verified(server.requests[0], added["signing_secret"]).type == CANCELLED
    assert (tested["status_code"], again["status"]) == (204, "pending")
    unanswered = grpo("test", added["id"])
    assert (unanswered.exit_code, "did not answer" in str(unanswered.exception)) == (1, True)
    shown = grpo("deliveries", added["id"]).stdout
    assert all(word in shown for word in (CANCELLED, "ftjob-test", "failed", "pending", "204"))
    assert [each["name"] for each in grpo_json("list")] == ["ops"]
    assert grpo_json("remove", added["id"])["deleted"] is True
    refused = grpo("add", "https://127.0.0.2/").exception
    assert isinstance(refused, CommandError)
    assert refused.param == "url"
