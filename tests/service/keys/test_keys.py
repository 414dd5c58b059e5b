"""Who a key is, and keys and tenants over HTTP for an admin key."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.jobs.model.states import JobState
from service.keys.schemas import KeyCreate, KeyRotate
from service.keys.service import Keys
from service.platform import audit
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.errors import Unauthorized
from service.platform.principal import Principal
from service.platform.tables.core import ApiKey
from service.settings import Settings
from service.web.auth import CURRENT_KEY, create_key, revoke_key
from tests.conftest import on_sqlite
from tests.service.job_samples import add_job, upload

DAY = 24 * 3600
KEYS, TENANTS = "/v1/keys", "/v1/tenants"
ADMIN_CALLS = (
    ("GET", KEYS),
    ("POST", KEYS),
    ("POST", f"{KEYS}/x/rotate"),
    ("DELETE", f"{KEYS}/x"),
    ("GET", TENANTS),
)


@pytest.fixture
def admin_key(database: Database) -> str:
    with database.transaction() as session:
        return create_key(session, "operators", name="console", scopes=["read", "write", "admin"])


@pytest.fixture
def admin(app: FastAPI, anonymous: TestClient, admin_key: str) -> TestClient:
    return TestClient(app, headers={"authorization": f"Bearer {admin_key}"})


def public_id(key: str) -> str:
    return key.split("_")[1]


def test_a_share_deleted_with_its_job_after_its_check_is_refused(
    database: Database, settings: Settings
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    with database.transaction() as session:
        share_id = public_id(create_key(session, "tenant-a", job_id=job_id))
        session.delete(session.get_one(ApiKey, share_id))
    with pytest.raises(Unauthorized):
        Keys(database, settings).read(share_id)


@on_sqlite
@pytest.mark.parametrize("scopes", [["read"], ["write"], ["read", "write"], []])
def test_any_valid_key_reads_its_own_description(
    anonymous: TestClient, database: Database, scopes: list[str]
) -> None:
    with database.transaction() as session:
        key = create_key(session, "tenant-a", name="laptop", scopes=scopes, expires_at=4e9)
    answer = anonymous.get(CURRENT_KEY, headers={"authorization": f"Bearer {key}"})
    about = answer.json()
    created, _ = about.pop("created_at"), about.pop("last_used_at")
    assert 1.7e9 < created < 4e9
    assert about == {
        "object": "api_key",
        "id": public_id(key),
        "tenant": "tenant-a",
        "name": "laptop",
        "scopes": sorted(scopes),
        "job_id": None,
        "expires_at": 4_000_000_000,
        "revoked_at": None,
    }


@on_sqlite
@pytest.mark.parametrize(("method", "path"), ADMIN_CALLS)
def test_keys_without_the_scope_admin_see_and_change_no_key(
    client: TestClient, anonymous: TestClient, method: str, path: str
) -> None:
    body = {"tenant": "tenant-a"} if (method, path) == ("POST", KEYS) else None
    answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert anonymous.request(method, path, json=body).status_code == 401


def test_an_admin_key_lists_all_keys_without_a_secret(
    admin: TestClient, admin_key: str, api_key: str, other_api_key: str, database: Database
) -> None:
    key_of_anna(database, job_id=add_job(database, JobState.SUCCEEDED))  # a share is not listed
    answer = admin.get(KEYS)
    keys = [admin_key, api_key, other_api_key]
    assert {one["id"] for one in answer.json()["data"]} == {public_id(key) for key in keys}
    assert not any(key.split("_")[2] in answer.text for key in keys)
    of_tenant = admin.get(KEYS, params={"tenant": "tenant-b"}).json()["data"]
    assert [one["id"] for one in of_tenant] == [public_id(other_api_key)]


def test_keys_are_listed_page_by_page(admin: TestClient, admin_key: str, api_key: str) -> None:
    first = admin.get(KEYS, params={"limit": 1}).json()
    second = admin.get(KEYS, params={"limit": 1, "after": first["last_id"]}).json()
    assert (first["has_more"], second["has_more"]) == (True, False)
    ids = [page["data"][0]["id"] for page in (first, second)]
    assert sorted(ids) == sorted(public_id(key) for key in (admin_key, api_key))


def test_a_created_key_works_and_its_creation_is_audited_with_the_admin_key(
    admin: TestClient, anonymous: TestClient, database: Database, admin_key: str
) -> None:
    body = {"tenant": "new", "name": "Anna", "scopes": ["read"], "expires_in_seconds": 60}
    made = admin.post(KEYS, json=body).json()
    assert made["expires_at"] - made["created_at"] == 60
    about = anonymous.get(CURRENT_KEY, headers={"authorization": f"Bearer {made['key']}"}).json()
    assert (about["tenant"], about["name"], about["scopes"]) == ("new", "Anna", ["read"])
    with database.reading() as session:
        (entry,) = audit.newest(session, tenant="new", limit=5)
    assert (entry.action, entry.object_id, entry.key_id) == ("key.create", made["id"], public_id(admin_key))


def test_an_admin_key_revoked_after_its_check_makes_no_key(
    database: Database, settings: Settings, admin_key: str, api_key: str
) -> None:
    actor = Principal("operators", public_id(admin_key), frozenset({"admin"}))
    with database.transaction() as session:
        revoke_key(session, actor.key_id)
    with pytest.raises(Unauthorized):
        Keys(database, settings).create(actor, KeyCreate(tenant="tenant-a"))
    with pytest.raises(Unauthorized):
        Keys(database, settings).rotate(actor, public_id(api_key), KeyRotate())


@on_sqlite
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tenant"),
        ({"tenant": "-x"}, "tenant"),
        ({"tenant": "x\n"}, "tenant"),
        ({"tenant": "x" * 65}, "tenant"),
        ({"tenant": "x", "name": "a\nb"}, "name"),
        ({"tenant": "x", "name": "a\u202eb"}, "name"),
        ({"tenant": "x", "scopes": ["admin"]}, "scopes[0]"),
        ({"tenant": "x", "scopes": []}, "scopes"),
        ({"tenant": "x", "expires_in_seconds": 0}, "expires_in_seconds"),
    ],
)
def test_a_wrong_key_is_refused_at_its_field(admin: TestClient, body: dict[str, Any], param: str) -> None:
    answer = admin.post(KEYS, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_revoked_key_is_refused_and_stays_in_the_list(
    admin: TestClient, client: TestClient, api_key: str
) -> None:
    revoked = admin.delete(f"{KEYS}/{public_id(api_key)}").json()
    assert revoked["revoked_at"] >= revoked["created_at"]
    assert client.get("/v1/files").status_code == 401
    assert revoked in admin.get(KEYS).json()["data"]
    assert admin.delete(f"{KEYS}/{public_id(api_key)}").status_code == 404


def key_of_anna(database: Database, **more: Any) -> str:
    with database.transaction() as session:
        return create_key(session, "tenant-a", name="Anna", scopes=["read"], **more)


def works(anonymous: TestClient, key: str) -> bool:
    return anonymous.get(CURRENT_KEY, headers={"authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.parametrize("expires_at", [None, 4e9])
def test_a_rotated_key_is_followed_by_one_like_it_and_works_for_a_day(
    admin: TestClient, anonymous: TestClient, database: Database, admin_key: str, expires_at: float | None
) -> None:
    old = key_of_anna(database, expires_at=expires_at)
    new = admin.post(f"{KEYS}/{public_id(old)}/rotate").json()
    about = (new["tenant"], new["name"], new["scopes"], new["expires_at"])
    assert about == ("tenant-a", "Anna", ["read"], expires_at)
    assert works(anonymous, old)
    assert works(anonymous, new["key"])
    listed = {one["id"]: one for one in admin.get(KEYS).json()["data"]}
    assert listed[public_id(old)]["expires_at"] - new["created_at"] in (DAY - 1, DAY, DAY + 1)
    with database.reading() as session:
        entries = audit.newest(session, tenant="tenant-a", limit=2)
    actor = public_id(admin_key)
    assert [(one.action, one.object_id, one.key_id) for one in entries] == [
        ("key.rotate", public_id(old), actor),
        ("key.create", new["id"], actor),
    ]


def test_a_key_rotated_without_hours_is_refused_at_once(
    admin: TestClient, anonymous: TestClient, database: Database
) -> None:
    old = key_of_anna(database)
    new = admin.post(f"{KEYS}/{public_id(old)}/rotate", json={"old_key_hours": 0}).json()
    assert (works(anonymous, old), works(anonymous, new["key"])) == (False, True)
    answer = admin.post(f"{KEYS}/{public_id(old)}/rotate")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "key_id")


def test_a_rotation_never_makes_the_old_key_live_longer(admin: TestClient, database: Database) -> None:
    with database.reading() as session:
        soon = session.scalars(select(db_now())).one() + 600
    old = key_of_anna(database, expires_at=soon)
    for hours in (24, 48):
        assert admin.post(f"{KEYS}/{public_id(old)}/rotate", json={"old_key_hours": hours}).is_success
    with database.reading() as session:
        assert session.get_one(ApiKey, public_id(old)).expires_at == soon


def test_admin_keys_and_shares_are_not_rotated_over_http(
    admin: TestClient, admin_key: str, database: Database
) -> None:
    answer = admin.post(f"{KEYS}/{public_id(admin_key)}/rotate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key")
    share = key_of_anna(database, job_id=add_job(database, JobState.SUCCEEDED))
    assert admin.post(f"{KEYS}/{public_id(share)}/rotate").status_code == 404


@on_sqlite
@pytest.mark.parametrize("hours", [-1, 721, 1.5, "24", None])
def test_wrong_hours_are_refused(admin: TestClient, api_key: str, hours: Any) -> None:
    answer = admin.post(f"{KEYS}/{public_id(api_key)}/rotate", json={"old_key_hours": hours})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "old_key_hours")


def test_tenants_are_listed_with_their_use_and_limits(
    admin: TestClient, client: TestClient, other_client: TestClient, database: Database
) -> None:
    upload(client)
    key_of_anna(database, job_id=add_job(database, JobState.SUCCEEDED))
    with database.transaction() as session:
        revoke_key(session, public_id(create_key(session, "tenant-a")))
    found = {one["id"]: one for one in admin.get(TENANTS).json()["data"]}
    assert list(found) == ["operators", "tenant-a", "tenant-b"]
    assert [one["num_keys"] for one in found.values()] == [1, 1, 1]
    assert found["tenant-a"]["stored_bytes"] > found["tenant-b"]["stored_bytes"] == 0
    assert found["tenant-a"]["limits"] == {
        "unfinished_jobs": 100,
        "running_jobs": None,
        "stored_bytes": None,
        "requests_per_second": None,
    }


def test_all_unfinished_jobs_are_counted_after_their_limit_was_lowered(
    app: FastAPI, admin: TestClient, client: TestClient, database: Database, settings: Settings
) -> None:
    for _ in range(3):
        add_job(database, JobState.QUEUED)
    app.state.settings = settings.model_copy(update={"max_queued_jobs": 1})
    (tenant,) = (one for one in admin.get(TENANTS).json()["data"] if one["id"] == "tenant-a")
    assert (tenant["unfinished_jobs"], tenant["limits"]["unfinished_jobs"]) == (3, 1)
