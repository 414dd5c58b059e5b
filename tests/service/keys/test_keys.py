"""Who a key is, and keys and tenants over HTTP for an admin key."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.keys.schemas import KeyCreate
from service.keys.service import Keys
from service.platform import audit
from service.platform.db import Database
from service.platform.errors import Unauthorized
from service.platform.principal import Principal
from service.settings import Settings
from service.web.auth import CURRENT_KEY, create_key, revoke_key
from tests.service.job_samples import upload

KEYS, TENANTS = "/v1/keys", "/v1/tenants"
ADMIN_CALLS = (("GET", KEYS), ("POST", KEYS), ("DELETE", f"{KEYS}/x"), ("GET", TENANTS))


@pytest.fixture
def admin_key(database: Database) -> str:
    with database.transaction() as session:
        return create_key(session, "operators", name="console", scopes=["read", "write", "admin"])


@pytest.fixture
def admin(app: FastAPI, anonymous: TestClient, admin_key: str) -> TestClient:
    return TestClient(app, headers={"authorization": f"Bearer {admin_key}"})


def public_id(key: str) -> str:
    return key.split("_")[1]


@pytest.mark.parametrize("scopes", [["read"], ["write"], ["read", "write"], []])
def test_any_valid_key_reads_what_it_is(anonymous: TestClient, database: Database, scopes: list[str]) -> None:
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


@pytest.mark.parametrize(("method", "path"), ADMIN_CALLS)
def test_keys_without_the_scope_admin_see_and_change_no_key(
    client: TestClient, anonymous: TestClient, method: str, path: str
) -> None:
    body = {"tenant": "tenant-a"} if method == "POST" else None
    answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert anonymous.request(method, path, json=body).status_code == 401


def test_an_admin_key_lists_all_keys_without_a_secret(
    admin: TestClient, admin_key: str, api_key: str, other_api_key: str
) -> None:
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


def test_an_admin_key_revoked_after_its_check_creates_no_key(
    database: Database, settings: Settings, admin_key: str
) -> None:
    actor = Principal("operators", public_id(admin_key), frozenset({"admin"}))
    with database.transaction() as session:
        revoke_key(session, actor.key_id)
    with pytest.raises(Unauthorized):
        Keys(database, settings).create(actor, KeyCreate(tenant="tenant-a"))


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


def test_tenants_are_listed_with_their_use_and_limits(
    admin: TestClient, client: TestClient, other_client: TestClient
) -> None:
    upload(client)
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
