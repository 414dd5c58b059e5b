"""A shared link reads one job until it ends, whatever else the tenant has."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.jobs.model.states import JobState
from service.jobs.store.history import HistoryEntry, append
from service.keys.schemas import ShareCreate
from service.keys.service import Shares
from service.platform import audit
from service.platform.db import Database
from service.platform.errors import Unauthorized
from service.platform.principal import Principal
from service.platform.tables.core import ApiKey, Job
from service.web.auth import CURRENT_KEY, JOB, SHARED_ROUTES, create_key, revoke_key
from tests.conftest import on_sqlite
from tests.service.job_samples import add_job
from tests.service.rollouts.rollout_samples import add_group, completion
from tests.service.web.tenancy import JOBS, World, sqlite_world
from tests.service.web.tenancy_calls import PUBLIC, calls_of, code_of, head, send

DAY = 24 * 3600


def secret_of(share: dict[str, Any]) -> str:
    return str(share["url"]).partition("#/shared/")[2]


def headers_of(share: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {secret_of(share)}"}


@pytest.fixture
def job_id(database: Database) -> str:
    return add_job(database, JobState.SUCCEEDED)


@pytest.fixture
def shared(client: TestClient, job_id: str) -> dict[str, Any]:
    answer = client.post(f"{JOBS}/{job_id}/shares")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_share_is_shown_once_and_reads_its_job(
    client: TestClient, anonymous: TestClient, job_id: str, shared: dict[str, Any]
) -> None:
    assert shared["url"] == f"http://testserver/#/shared/{secret_of(shared)}"
    assert shared["expires_at"] - shared["created_at"] in (7 * DAY - 1, 7 * DAY)  # both are cut to seconds
    (listed,) = client.get(f"{JOBS}/{job_id}/shares").json()["data"]
    assert listed == {name: value for name, value in shared.items() if name != "url"}
    assert anonymous.get(f"{JOBS}/{job_id}", headers=headers_of(shared)).json()["id"] == job_id


def test_a_share_says_which_job_it_may_read(
    anonymous: TestClient, job_id: str, shared: dict[str, Any]
) -> None:
    about = anonymous.get(CURRENT_KEY, headers=headers_of(shared)).json()
    assert (about["id"], about["job_id"]) == (shared["id"], job_id)
    assert about["expires_at"] == shared["expires_at"]


SECRETS = ("of-the-endpoint", "secret-path", "secret-query")


@pytest.fixture
def with_servers(database: Database, job_id: str) -> str:
    """The job, with a grader and a tool on servers that have repeated their own addresses and keys."""
    url = "https://host.example/secret-path?key=secret-query"
    headers = {"authorization": "Bearer of-the-endpoint"}
    grader = {"type": "endpoint", "name": "e", "url": url, "headers": headers}
    tool = {"type": "http", "name": "t", "url": "https://tool.example/secret-path"}
    server = {"type": "mcp", "server_url": "https://mcp.example/secret-path?key=secret-query"}
    said = f"{url}: no /secret-path for of-the-endpoint, see https://tool.example/secret-path"
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        method = {"grader": {"type": "multi", "graders": {"g": grader}}, "tools": [tool, server]}
        job.method = {"type": "reinforcement", "reinforcement": method}
        job.notes = said
        append(session, job_id, HistoryEntry("message", said, data={"answer": [said]}))
    add_group(database, job_id, 1, 0, [completion(0.0, text=said, feedback=said)])
    return job_id


def test_a_share_shows_no_header_and_of_urls_only_the_host(
    client: TestClient, anonymous: TestClient, with_servers: str, shared: dict[str, Any]
) -> None:
    mine = client.get(f"{JOBS}/{with_servers}").json()["method"]["reinforcement"]
    assert all(secret in str(mine) for secret in SECRETS)
    answer = anonymous.get(f"{JOBS}/{with_servers}", headers=headers_of(shared))
    seen = answer.json()["method"]["reinforcement"]
    grader = seen["grader"]["graders"]["g"]
    assert (grader["url"], grader["headers"]) == ("host.example", {"authorization": "…"})
    assert (seen["tools"][0]["url"], seen["tools"][1]["server_url"]) == ("tool.example", "mcp.example")


@on_sqlite
def test_no_route_of_a_share_shows_what_servers_repeat_of_their_urls_and_headers(
    client: TestClient, anonymous: TestClient, with_servers: str, shared: dict[str, Any]
) -> None:
    hidden = set()
    for route in SHARED_ROUTES:
        path = route.format(job_id=with_servers)
        mine, seen = client.get(path).text, anonymous.get(path, headers=headers_of(shared)).text
        assert not [secret for secret in SECRETS if secret in seen], route
        if "host.example" in mine:
            assert "host.example: no … for …, see tool.example" in seen, route
            hidden.add(route.removeprefix(JOB))
    assert hidden == {"", "/events", "/stream", "/rollouts", "/rollouts/completions"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "http", "parameters": {"properties": {"headers": {"description": "readable."}}}},
        {"parameters": {"properties": {"headers": {"type": "object", "properties": {"a": {}}}}}},
        {"reset": {"headers": {"retries": 3}, "url": "", "inner": {"url": "https://[half"}}},
    ],
)
def test_a_share_shows_a_job_whose_own_fields_are_called_like_those_with_secrets(
    anonymous: TestClient, database: Database, job_id: str, shared: dict[str, Any], part: dict[str, Any]
) -> None:
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.method = {**job.method, "part": part}
        job.warnings = [{"code": "a", "message": "All is readable."}]
    answer = anonymous.get(f"{JOBS}/{job_id}", headers=headers_of(shared))
    assert answer.status_code == 200, answer.text
    assert answer.json()["warnings"] == [{"code": "a", "message": "All is readable."}]


def test_an_older_api_that_ignores_the_job_of_a_share_refuses_it(
    database: Database, shared: dict[str, Any]
) -> None:
    """It only compares scopes."""
    with database.reading() as session:
        assert session.get_one(ApiKey, shared["id"]).scopes == []


@on_sqlite
@pytest.mark.parametrize("scope", ["read", "write"])
def test_only_a_key_that_reads_and_writes_makes_a_share(
    anonymous: TestClient, database: Database, job_id: str, scope: str
) -> None:
    with database.transaction() as session:
        key = create_key(session, "tenant-a", scopes=[scope])
    headers = {"authorization": f"Bearer {key}"}
    answer = anonymous.post(f"{JOBS}/{job_id}/shares", json={}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


def test_a_key_revoked_after_its_check_makes_no_share(
    client: TestClient, database: Database, job_id: str, api_key: str
) -> None:
    actor = Principal("tenant-a", api_key.split("_")[1], frozenset({"write"}))
    with database.transaction() as session:
        revoke_key(session, actor.key_id)
    with pytest.raises(Unauthorized):
        Shares(database).create(actor, job_id, ShareCreate(), "http://x/")


@on_sqlite
@pytest.mark.parametrize("seconds", [0, 90 * DAY + 1, "7", 1.5])
def test_a_share_lasts_at_most_ninety_days(client: TestClient, job_id: str, seconds: Any) -> None:
    answer = client.post(f"{JOBS}/{job_id}/shares", json={"expires_in_seconds": seconds})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "expires_in_seconds")


def test_a_revoked_share_reads_nothing(
    client: TestClient, anonymous: TestClient, job_id: str, shared: dict[str, Any]
) -> None:
    path = f"{JOBS}/{job_id}/shares"
    assert client.delete(f"{path}/{shared['id']}").json()["deleted"] is True
    answer = anonymous.get(f"{JOBS}/{job_id}", headers=headers_of(shared))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert client.get(path).json()["data"] == []
    assert client.delete(f"{path}/{shared['id']}").status_code == 404


def test_an_expired_share_reads_nothing_and_is_not_listed(
    client: TestClient, anonymous: TestClient, database: Database, job_id: str, shared: dict[str, Any]
) -> None:
    with database.transaction() as session:
        session.get_one(ApiKey, shared["id"]).expires_at = 1.0
    answer = anonymous.get(f"{JOBS}/{job_id}", headers=headers_of(shared))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "expired_api_key")
    assert client.get(f"{JOBS}/{job_id}/shares").json()["data"] == []


def test_the_shares_of_a_deleted_job_are_deleted(
    client: TestClient, anonymous: TestClient, database: Database, job_id: str, shared: dict[str, Any]
) -> None:
    assert client.delete(f"{JOBS}/{job_id}").status_code == 200
    with database.reading() as session:
        assert session.scalars(select(ApiKey).where(ApiKey.job_id.is_not(None))).all() == []
    assert anonymous.get(f"{JOBS}/{job_id}", headers=headers_of(shared)).status_code == 401


def test_a_share_is_revoked_only_as_one_of_its_own_job(
    client: TestClient, database: Database, shared: dict[str, Any], api_key: str
) -> None:
    other = add_job(database, JobState.SUCCEEDED)
    for share_id in (shared["id"], api_key.split("_")[1]):
        assert client.delete(f"{JOBS}/{other}/shares/{share_id}").status_code == 404


@on_sqlite
def test_a_job_has_at_most_fifty_active_shares(client: TestClient, job_id: str) -> None:
    made = [client.post(f"{JOBS}/{job_id}/shares", json={}).status_code for _ in range(51)]
    assert made == [*[200] * 50, 409]


def test_making_and_revoking_a_share_is_audited_with_the_key_that_did_it(
    client: TestClient, database: Database, job_id: str, shared: dict[str, Any], api_key: str
) -> None:
    client.delete(f"{JOBS}/{job_id}/shares/{shared['id']}")
    with database.reading() as session:
        entries = audit.newest(session, tenant="tenant-a", limit=2)
    found = [(one.action, one.object_id, one.key_id) for one in entries]
    actor = api_key.split("_")[1]
    assert found == [("job.unshare", shared["id"], actor), ("job.share", shared["id"], actor)]


# ---- every route


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with sqlite_world(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture(scope="module")
def reader(everything: World) -> Iterator[httpx.Client]:
    """Of a link to the succeeded job."""
    with everything.client("owner") as owner:
        made = owner.post(f"{JOBS}/{everything.ids['succeeded']}/shares", json={}).raise_for_status().json()
    with httpx.Client(base_url=everything.url, headers=headers_of(made), timeout=30) as client:
        yield client


def test_every_route_refuses_a_share_but_the_listed_ones_of_its_job(
    everything: World, reader: httpx.Client
) -> None:
    contract = reader.get("/openapi.json").json()["paths"]
    allowed, wrong = set(), {}
    for call in calls_of(contract, everything):
        answer = send(reader, call, everything.ids)
        is_its_job = call.place.real == {"job_id": everything.ids["succeeded"]}
        is_listed = call.method == "get" and call.template in SHARED_ROUTES and is_its_job
        expected: Any = (200, None) if is_listed else (403, "shared_link")
        if (answer.status_code, code_of(answer)) != expected:
            wrong[str(call)] = (answer.status_code, answer.text)
        if call.method == "get" and head(reader, call).status_code != expected[0]:
            wrong[f"head of {call}"] = head(reader, call).status_code
        if is_listed:
            allowed.add(call.template)
    assert wrong == {}
    assert allowed == SHARED_ROUTES


def test_a_share_sees_no_key_and_no_tenant(reader: httpx.Client) -> None:
    contract = reader.get("/openapi.json").json()["paths"]
    found = {}
    for path, methods in contract.items():
        for method in methods if re.match("/v1/(keys|tenants)", path) else ():
            body = {"tenant": "tenant-a"} if method == "post" else None
            answer = reader.request(method, path.format(key_id="x"), json=body)
            found[f"{method} {path}"] = answer.status_code
    assert found == {name: 200 if name == f"get {CURRENT_KEY}" else 403 for name in found}
    assert len(found) == 6


def test_no_query_makes_a_share_read_another_job(everything: World, reader: httpx.Client) -> None:
    own, other = everything.ids["succeeded"], everything.ids["running"]
    queries = ("", f"?parent={other}", f"?job_id={other}", f"?compare={other}", f"?after={other}")
    for path in (f"{JOBS}/{own}", f"{JOBS}/{own}/metrics", f"{JOBS}/{own}/rollouts"):
        for query in queries:
            answer = reader.get(path + query)
            assert answer.status_code == 404 or other not in answer.text
    for path in (f"{JOBS}/{own}/../{other}", f"{JOBS}/{own}%2F..%2F{other}", f"{JOBS}/{other}/stream"):
        assert reader.get(path).status_code in (403, 404)


def test_routes_that_need_no_key_are_the_known_ones(reader: httpx.Client) -> None:
    """All others pass the one check."""
    contract = reader.get("/openapi.json").json()["paths"]
    open_paths = {path for path in contract if "security" not in next(iter(contract[path].values()))}
    assert open_paths == PUBLIC
