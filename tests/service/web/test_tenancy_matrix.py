"""Every route of the OpenAPI document × every kind of client: none reads or changes another's objects.

The routes come from `/openapi.json`, so a new one is in the matrix from its first day; what is missing for it
in `tenancy.py` fails `test_the_matrix_covers_every_route`.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from service.jobs.model import names
from service.platform.db import Database, connect
from service.platform.tables.core import AuditEntry
from tests.conftest import settings_for
from tests.service.web.tenancy import JOBS, OWNER, World, body_of, snapshot, world
from tests.service.web.tenancy_calls import KEY_ROUTES, PUBLIC, Call, calls_of, code_of, head, send, visible
from tests.support.servers import Postgres

REFUSED_BY_STATE = {
    (400, "file_in_use"),
    (400, "file_is_result"),
    (400, "invalid_state"),
    (409, "job_not_finished"),
    (404, "no_adapter_yet"),
    (404, "model_not_found"),  # a checkpoint's model is read, and not deleted without its job's
}
"""Refusals that the owner also gets, because of an object's state."""


@pytest.fixture(scope="module")
def postgres_database(
    postgres_server: Postgres, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    postgres_server.execute(f"CREATE DATABASE grpo_matrix TEMPLATE {postgres_template}")
    settings = settings_for(tmp_path_factory.mktemp("settings"), postgres_server.url_of("grpo_matrix"))
    database = connect(settings)
    yield database
    database.engine.dispose()
    postgres_server.execute("DROP DATABASE grpo_matrix WITH (FORCE)")


@pytest.fixture(scope="module")
def shared(
    postgres_server: Postgres, postgres_database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """One world for all tests that change nothing of the owner's."""
    settings = settings_for(tmp_path_factory.mktemp("matrix"), postgres_server.url_of("grpo_matrix"))
    with world(settings, postgres_database) as found:
        yield found


@pytest.fixture(scope="module")
def contract(shared: World) -> dict[str, Any]:
    with shared.client(None) as client:
        return dict(client.get("/openapi.json").json()["paths"])


def test_the_matrix_covers_every_route(contract: dict[str, Any], shared: World) -> None:
    missing = []
    for template, methods in contract.items():
        parameters = set(re.findall(r"\{(\w+)\}", template))
        if template in KEY_ROUTES:
            continue
        if parameters and not shared.places_of(parameters):
            missing.append(f"{template}: no Place with {sorted(parameters)} in tests/service/web/tenancy.py")
        for method, operation in methods.items():
            if "requestBody" in operation and body_of(f"{method} {template}", shared.ids) is None:
                missing.append(f"{method} {template}: no body in tests/service/web/tenancy.py")
    assert missing == []


def test_only_the_listed_routes_need_no_key(contract: dict[str, Any]) -> None:
    open_paths = {
        path for path, methods in contract.items() if any("security" not in m for m in methods.values())
    }
    assert open_paths == PUBLIC


@pytest.mark.parametrize(
    ("who", "code"),
    [(None, "missing_api_key"), ("revoked", "invalid_api_key"), ("expired", "expired_api_key")],
)
def test_every_other_route_refuses_invalid_keys(
    contract: dict[str, Any], shared: World, who: str | None, code: str
) -> None:
    before = snapshot(shared)
    with shared.client(who) as client:
        answers = {str(call): send(client, call, shared.ids) for call in calls_of(contract, shared)}
        heads = {str(call): head(client, call) for call in calls_of(contract, shared) if call.method == "get"}
    open_ = {
        call: one.text for call, one in answers.items() if (one.status_code, code_of(one)) != (401, code)
    }
    open_heads = {call: one.status_code for call, one in heads.items() if one.status_code != 401}
    assert (open_, open_heads) == ({}, {})
    assert snapshot(shared) == before


def test_foreign_and_missing_objects_get_the_same_response(contract: dict[str, Any], shared: World) -> None:
    before = snapshot(shared)
    wrong: dict[str, Any] = {}
    with shared.client("other") as client:
        for call in calls_of(contract, shared):
            if not call.place.real:
                continue
            foreign = visible(send(client, call, shared.ids), call.place.real)
            unknown = visible(send(client, call, shared.ids, unknown=True), call.place.unknown)
            if foreign[0] != 404 or foreign != unknown:
                wrong[str(call)] = (foreign, unknown)
            if call.method == "get" and head(client, call).status_code != 404:
                wrong[f"head of {call}"] = head(client, call).status_code
    assert wrong == {}
    assert snapshot(shared) == before


def test_no_answer_to_another_tenant_names_anything_of_the_owner(
    contract: dict[str, Any], shared: World
) -> None:
    """Lists, and other requests without an id."""
    before = snapshot(shared)
    private = {name: one for name, one in shared.ids.items() if not name.startswith("other_")}
    private |= {"tenant": OWNER, "content": "owner's"}
    with shared.client("other") as client:
        for call in calls_of(contract, shared):
            if call.place.real:
                continue
            answer = send(client, call, shared.ids, who="other_")
            assert answer.status_code == 200, f"{call}: {answer.text}"
            assert [name for name, one in private.items() if one in answer.text] == [], str(call)
    assert snapshot(shared) == before


def test_a_read_only_key_sees_everything_and_changes_nothing(contract: dict[str, Any], shared: World) -> None:
    before = snapshot(shared)
    wrong: dict[str, Any] = {}
    with shared.client("owner") as owner, shared.client("read_only") as reader:
        for call in calls_of(contract, shared):
            answer = send(reader, call, shared.ids)
            if call.writes:
                expected: Any = (403, "insufficient_scope")
                found: Any = (answer.status_code, code_of(answer))
            else:
                expected = visible(send(owner, call, shared.ids), {})[:2]
                found = visible(answer, {})[:2]
            if found != expected:
                wrong[str(call)] = (found, expected)
    assert wrong == {}
    assert snapshot(shared) == before


def test_a_key_that_only_writes_sees_nothing(contract: dict[str, Any], shared: World) -> None:
    with shared.client("write_only") as client:
        looking = [call for call in calls_of(contract, shared) if not call.writes]
        answers = {str(call): send(client, call, shared.ids).status_code for call in looking}
    assert {call: status for call, status in answers.items() if status != 403} == {}


def test_the_owner_sees_everything(contract: dict[str, Any], shared: World) -> None:
    wrong: dict[str, Any] = {}
    seen = set()
    with shared.client("owner") as client:
        for call in calls_of(contract, shared):
            if call.writes:
                continue
            answer = send(client, call, shared.ids)
            if answer.is_success:
                seen.add(call.operation)
            elif (answer.status_code, code_of(answer)) not in REFUSED_BY_STATE:
                wrong[str(call)] = answer.text
            if call.method == "get" and head(client, call).status_code != answer.status_code:
                wrong[f"head of {call}"] = head(client, call).status_code
    assert wrong == {}
    assert seen == {call.operation for call in calls_of(contract, shared) if not call.writes}


@pytest.fixture
def own(database: Database, settings: Any) -> Iterator[World]:
    """A world of this test's own, to be changed."""
    with world(settings, database) as found:
        yield found


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_every_change_by_the_owner_leaves_one_audit_row(own: World) -> None:
    with own.client("owner") as client:
        contract = client.get("/openapi.json").json()["paths"]
        writes = [call for call in calls_of(contract, own) if call.writes]
        changed = set()
        for call in sorted(writes, key=ends_something):
            answer = send(client, call, own.ids)
            if answer.is_success:
                changed.add(call.operation)
                check_audit(own, call, answer)
            else:
                assert (answer.status_code, code_of(answer)) in REFUSED_BY_STATE, f"{call}: {answer.text}"
                assert audit_rows(own, answer) == [], str(call)
    assert changed == {call.operation for call in writes}, "nothing succeeded there"


def ends_something(call: Call) -> int:
    """What comes last, because little can be done afterwards."""
    if call.operation == f"delete {JOBS}/{{job_id}}":
        return 3
    return 2 if call.method == "delete" else int(call.template.endswith("/cancel"))


def check_audit(found: World, call: Call, answer: httpx.Response) -> None:
    """Key, action, object and request."""
    rows = audit_rows(found, answer)
    assert len(rows) == 1, f"{call}: {len(rows)} audit rows"
    named = {*call.place.real.values(), answer.json().get("id", "")}
    named |= {names.job_of(one) for one in named}
    noun = call.template.removeprefix("/v1/").removeprefix("fine_tuning/").split("/")[0]
    noun = noun.removesuffix("s").removesuffix("_endpoint")
    assert (rows[0].tenant, rows[0].key_id) == (OWNER, found.keys["owner"].split("_")[1])
    assert rows[0].action.split(".")[0] == noun
    assert rows[0].object_id in named


def audit_rows(found: World, answer: httpx.Response) -> list[AuditEntry]:
    query = select(AuditEntry).where(AuditEntry.request_id == answer.headers["x-request-id"])
    with found.database.reading() as session:
        return list(session.scalars(query))
