"""Webhook endpoints over HTTP: permissions, allowed destinations, and the secret."""

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import BadRequestError, OpenAI
from openai.types.webhooks import WebhookEndpoint as OpenAIEndpoint
from openai.types.webhooks import WebhookEndpointTestResult
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from grpo_engine.outbound.addresses import AllowedHosts
from service.platform.db import Database
from service.platform.tables.core import AuditEntry
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.settings import Settings
from service.web.auth import create_key
from service.webhooks import sending
from service.webhooks.outbox import Claimed
from tests.conftest import on_sqlite
from tests.service.web.error_samples import error_of
from tests.service.webhooks.webhook_samples import NOWHERE, SUCCEEDED, WEBHOOKS, create
from tests.support.chat_server import Reply, ScriptedServer
from tests.support.hostile_urls import REFUSED
from tests.support.webhook_receiver import ALLOWED, verified


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_hosts": ALLOWED})


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _recorded: Reply(status=202)) as server:
        yield server


def test_a_repeated_registration_makes_one_endpoint(
    client: TestClient, other_client: TestClient, database: Database
) -> None:
    def repeat(client: TestClient = client, **fields: Any) -> Any:
        body = {"name": "ops", "url": NOWHERE, "event_types": [SUCCEEDED]} | fields
        return client.post(WEBHOOKS, json=body, headers={"x-stainless-retry-count": "1"}).json()

    first = create(client, name="ops")
    assert repeat() == first
    other = [repeat(name="other"), repeat(url=f"{NOWHERE}a"), repeat(event_types=["fine_tuning.job.failed"])]
    other += [create(client, name="ops"), repeat(other_client)]
    with database.transaction() as session:
        session.execute(update(WebhookEndpoint).values(created_at=WebhookEndpoint.created_at - 601))
    other.append(repeat())
    assert len({each["id"] for each in (first, *other)}) == 7
    assert len({each["signing_secret"] for each in (first, *other)}) == 7


def test_an_endpoint_is_registered_read_changed_and_deleted(client: TestClient) -> None:
    wanted = [SUCCEEDED, "fine_tuning.job.failed", SUCCEEDED]
    created = create(client, event_types=wanted, name="ops")
    path = f"{WEBHOOKS}/{created['id']}"
    secret = created.pop("signing_secret")
    assert (created["event_types"], created["enabled"]) == (["fine_tuning.job.failed", SUCCEEDED], True)
    assert client.get(path).json() == created
    changed = client.post(path, json={"name": "on call", "event_types": ["fine_tuning.job.paused"]}).json()
    assert (changed["name"], changed["event_types"]) == ("on call", ["fine_tuning.job.paused"])
    assert (changed["url"], changed["created_at"]) == (NOWHERE, created["created_at"])
    assert client.get(WEBHOOKS).json()["data"] == [changed]
    assert client.delete(path).json() == {
        "object": "webhook_endpoint.deleted",
        "id": created["id"],
        "deleted": True,
    }
    assert error_of(client.get(path), 404)["code"] == "webhook_not_found"
    assert secret.startswith("whsec_")


@on_sqlite
def test_openai_s_unmodified_client_manages_endpoints(
    openai_client: OpenAI, receiver: ScriptedServer
) -> None:
    made = openai_client.webhooks.create(name="hook", url=receiver.url, event_types=[SUCCEEDED])
    hook = openai_client.webhooks
    OpenAIEndpoint.model_validate(hook.retrieve(made.id).model_dump(), strict=True)
    assert [each.id for each in hook.list()] == [made.id]
    assert hook.update(made.id, event_types=["fine_tuning.job.cancelled"]).event_types == [
        "fine_tuning.job.cancelled"
    ]
    rotated = hook.rotate_secret(made.id, keep_old_secret_active_for_24_hours=False)
    assert rotated.signing_secret != made.signing_secret
    tested = hook.test(made.id, event_type="fine_tuning.job.failed")
    WebhookEndpointTestResult.model_validate(tested.model_dump(), strict=True)
    assert (tested.status_code, tested.event_type) == (202, "fine_tuning.job.failed")
    assert hook.delete(made.id).deleted
    assert verified(receiver.requests[0], rotated.signing_secret).type == "fine_tuning.job.failed"


@on_sqlite
def test_openais_client_does_not_repeat_a_test_without_an_answer(openai_client: OpenAI) -> None:
    made = openai_client.webhooks.create(name="hook", url=NOWHERE, event_types=[SUCCEEDED])
    with pytest.raises(BadRequestError, match="did not answer") as caught:
        openai_client.webhooks.test(made.id, event_type=SUCCEEDED)
    assert (caught.value.code, caught.value.param) == ("webhook_no_answer", "url")
    path = f"/webhook_endpoints/{made.id}/deliveries"
    (delivery,) = openai_client.get(path, cast_to=dict[str, Any])["data"]
    assert len(delivery["attempts"]) == 1


@on_sqlite
def test_the_secret_is_shown_only_at_creation_and_rotation(
    client: TestClient, receiver: ScriptedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    created = create(client, url=receiver.url)
    path = f"{WEBHOOKS}/{created['id']}"
    rotated = client.post(f"{path}/rotate_secret").json()
    secrets = {created["signing_secret"], rotated["signing_secret"]}
    assert len(secrets) == 2
    tested = client.post(f"{path}/test")
    answers = [tested, client.get(path), client.get(WEBHOOKS), client.post(path, json={"name": "x"})]
    answers += [client.get(f"{path}/deliveries"), client.delete(path)]
    assert [answer.status_code for answer in answers] == [200] * 6
    printed = "".join(capfd.readouterr())
    assert "rotate_secret" in printed
    shown = printed + "".join(answer.text for answer in answers)
    assert [secret for secret in secrets if secret.removeprefix("whsec_") in shown] == []


def test_an_error_of_the_database_does_not_contain_the_secret(client: TestClient, database: Database) -> None:
    created = create(client)
    with database.reading() as session:
        row = session.get_one(WebhookEndpoint, created["id"])
    columns = {name: value for name, value in vars(row).items() if not name.startswith("_")}
    with pytest.raises(IntegrityError) as caught, database.transaction() as session:
        session.add(WebhookEndpoint(**columns))
    assert created["signing_secret"] not in str(caught.value)


def test_another_tenant_s_endpoint_does_not_exist(
    client: TestClient, other_client: TestClient, receiver: ScriptedServer
) -> None:
    webhook_id = create(client, url=receiver.url)["id"]
    delivery_id = client.post(f"{WEBHOOKS}/{webhook_id}/test").json()["delivery_id"]
    mine = create(other_client)["id"]
    calls = [
        ("GET", webhook_id, {}),
        ("POST", webhook_id, {"json": {"enabled": False}}),
        ("DELETE", webhook_id, {}),
        ("POST", f"{webhook_id}/rotate_secret", {}),
        ("POST", f"{webhook_id}/test", {}),
        ("GET", f"{webhook_id}/deliveries", {}),
        ("POST", f"{webhook_id}/deliveries/{delivery_id}/redeliver", {}),
        ("POST", f"{mine}/deliveries/{delivery_id}/redeliver", {}),
    ]
    answers = [other_client.request(verb, f"{WEBHOOKS}/{path}", **more) for verb, path, more in calls]
    assert [answer.status_code for answer in answers] == [404] * len(calls)
    assert other_client.get(WEBHOOKS, params={"after": webhook_id}).status_code == 404
    assert [each["id"] for each in other_client.get(WEBHOOKS).json()["data"]] == [mine]
    assert client.get(f"{WEBHOOKS}/{webhook_id}").json()["enabled"] is True
    assert len(receiver.requests) == 1


@on_sqlite
def test_a_key_that_may_only_read_changes_nothing(client: TestClient, database: Database) -> None:
    webhook_id = create(client)["id"]
    with database.transaction() as session:
        key = create_key(session, "tenant-a", scopes=["read"])
    client.headers["authorization"] = f"Bearer {key}"
    path = f"{WEBHOOKS}/{webhook_id}"
    body = {"url": NOWHERE, "event_types": [SUCCEEDED]}
    refused = [client.post(WEBHOOKS, json=body), client.post(path, json={}), client.delete(path)]
    refused += [client.post(f"{path}/{verb}") for verb in ("test", "rotate_secret")]
    refused.append(client.post(f"{path}/deliveries/none/redeliver"))
    assert [answer.status_code for answer in refused] == [403] * 6
    assert client.get(path).status_code == 200


@on_sqlite
def test_each_change_leaves_an_audit_row(
    client: TestClient, database: Database, receiver: ScriptedServer
) -> None:
    webhook_id = create(client, url=receiver.url)["id"]
    path = f"{WEBHOOKS}/{webhook_id}"
    client.post(path, json={"name": "x"})
    client.post(f"{path}/rotate_secret")
    delivery_id = client.post(f"{path}/test").json()["delivery_id"]
    client.post(f"{path}/deliveries/{delivery_id}/redeliver")
    client.delete(path)
    rows = select(AuditEntry.action).where(AuditEntry.object_id == webhook_id).order_by(AuditEntry.id)
    with database.reading() as session:
        actions = list(session.scalars(rows))
    verbs = ("create", "update", "rotate_secret", "test", "redeliver", "delete")
    assert actions == [f"webhook.{verb}" for verb in verbs]


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"event_types": []}, "event_types"),
        ({"event_types": ["batch.completed"]}, "event_types[0]"),
        ({"name": "x" * 129}, "name"),
        ({"description": "x"}, "description"),
        ({"url": None}, "url"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, fields: dict[str, Any], param: str) -> None:
    body = {"url": NOWHERE, "event_types": [SUCCEEDED]} | fields
    assert error_of(client.post(WEBHOOKS, json=body))["param"] == param


@on_sqlite
def test_a_tenant_has_twenty_endpoints_at_most(client: TestClient, other_client: TestClient) -> None:
    for _ in range(20):
        create(client)
    body = {"url": NOWHERE, "event_types": [SUCCEEDED]}
    assert error_of(client.post(WEBHOOKS, json=body))["code"] == "webhook_limit"
    create(other_client)


def test_endpoints_are_listed_newest_first_over_pages(client: TestClient) -> None:
    ids = [create(client)["id"] for _ in range(3)]
    first = client.get(WEBHOOKS, params={"limit": 2}).json()
    rest = client.get(WEBHOOKS, params={"limit": 2, "after": first["last_id"]}).json()
    assert [each["id"] for each in first["data"] + rest["data"]] == ids[::-1]
    assert (first["has_more"], rest["has_more"]) == (True, False)


@on_sqlite
def test_no_hostile_url_is_registered_or_sent_to(
    client: TestClient, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(listener.getsockname()[1])
    webhook_id = create(client)["id"]
    client.app.state.settings = client.app.state.settings.model_copy(update={"allowed_hosts": ""})  # type: ignore[attr-defined]
    numbers = itertools.count()
    assert len(REFUSED) > 40
    for url in (template.replace("PORT", port) for template in REFUSED):
        path = WEBHOOKS if next(numbers) % 2 else f"{WEBHOOKS}/{webhook_id}"
        body = {"url": url} | ({"event_types": [SUCCEEDED]} if path == WEBHOOKS else {})
        assert error_of(client.post(path, json=body))["param"] == "url", url
        attempt = sending.send(*delivery_to(url), AllowedHosts())
        assert (attempt.status_code, bool(attempt.error)) == (None, True), url
    assert [each["url"] for each in client.get(WEBHOOKS).json()["data"]] == [NOWHERE]


def delivery_to(url: str) -> tuple[WebhookEndpoint, Claimed]:
    endpoint = WebhookEndpoint(id="we_1", url=url, secret="whsec_MTIz")
    row = WebhookDelivery(
        id="evt_1_we_1", event_id="evt_1", event_type=SUCCEEDED, job_id="ftjob-1", created_at=1.0
    )
    return endpoint, Claimed(row, 1.0)


@on_sqlite
def test_a_name_with_a_private_address_is_refused_and_one_without_address_is_not(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_up(host: str, *_given: Any, **_more: Any) -> list[Any]:
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        addresses = ("8.8.8.8", "10.0.0.1") if host == "inside.example" else ("8.8.8.8",)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    body = {"url": "https://inside.example/", "event_types": [SUCCEEDED]}
    refusal = error_of(client.post(WEBHOOKS, json=body))
    assert (refusal["param"], refusal["code"]) == ("url", "url_refused")
    reason = "inside.example has an address that is not public"
    assert refusal["message"] == f"url: {reason}, got 'https://inside.example/'."
    for host in ("outside.example", "nowhere.example"):
        create(client, url=f"https://{host}/")


@on_sqlite
def test_a_disabled_endpoint_receives_nothing_until_it_is_enabled(
    client: TestClient, receiver: ScriptedServer
) -> None:
    path = f"{WEBHOOKS}/{create(client, url=receiver.url)['id']}"
    assert client.post(path, json={"enabled": False}).json()["enabled"] is False
    assert error_of(client.post(f"{path}/test"))["code"] == "webhook_disabled"
    assert client.post(path, json={"enabled": True}).json()["enabled"] is True
    assert client.post(f"{path}/test").json()["status_code"] == 202
