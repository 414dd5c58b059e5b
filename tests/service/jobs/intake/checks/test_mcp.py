"""Jobs with MCP servers: their tools are listed, checked and counted at submit."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.jobs.intake.checks import mcp as check
from service.jobs.store import machines
from service.jobs.store.machines import MCP, Machine
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import create, jsonl, make_model, reinforcement, request, row, upload
from tests.support.mcp_servers.hostile import HostileServer, tool
from tests.support.mcp_servers.official import ALLOWED, official, served

ROWS = jsonl(row(), row("What is 3+3?", "6"))
SHOWING = "{% if tools %}{{ tools|tojson }} {% endif %}{{ messages[0].content }}"
PLACE = "method.reinforcement.tools"


@pytest.fixture(autouse=True)
def _model(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", ALLOWED)
    make_model(settings.home)


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with served(official()) as url:
        yield url


def with_tools(*tools: dict[str, Any]) -> dict[str, Any]:
    method = reinforcement()
    method["reinforcement"]["tools"] = list(tools)
    return method


def mcp(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_url": url, **more}


def report(client: TestClient, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = request(upload(client, ROWS), method=with_tools(*tools), **more)
    return dict(client.post("/v1/fine_tuning/jobs/validate", json=body).json())


def problems(client: TestClient, *tools: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    return [(each["param"], each["message"]) for each in report(client, *tools, **more)["problems"]]


@on_sqlite
def test_a_job_in_openais_shape_is_queued_for_a_worker_with_the_package(
    client: TestClient, database: Database, shop: str
) -> None:
    given = mcp(shop, server_label="shop", require_approval="never", headers={"Authorization": "Bearer k"})
    job = create(client, upload(client, ROWS), method=with_tools({**given, "allowed_tools": ["add"]}))
    with database.reading() as session:
        row = session.scalars(select(Job).where(Job.id == job["id"])).one()
        assert row.required_capabilities == MCP
        (stored,) = row.method["reinforcement"]["tools"]
    assert stored == {
        **given,
        "allowed_tools": ["add"],
        "timeout_seconds": 10.0,
        "max_output_chars": 2000,
    }


@on_sqlite
def test_headers_are_hidden_in_the_manifest(client: TestClient, shop: str) -> None:
    given = mcp(shop, allowed_tools=["add"], headers={"Authorization": "Bearer very-secret"})
    job = create(client, upload(client, ROWS), method=with_tools(given))
    answer = client.get(f"/v1/fine_tuning/jobs/{job['id']}/manifest")
    assert answer.status_code == 200
    assert "very-secret" not in answer.text
    assert '"Authorization"' in answer.text


@on_sqlite
def test_the_servers_tools_count_among_a_prompts_tokens(client: TestClient, settings: Settings) -> None:
    make_model(settings.home, "showing", template=SHOWING)

    async def long(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": [tool("look", description="word " * 60), tool("see")]}

    with served(HostileServer(long)) as url:
        places = [place for place, _ in problems(client, mcp(url), model="showing")]
        assert places == ["training_file[1].messages", "training_file[2].messages"]
        assert problems(client, mcp(url, allowed_tools=["see"]), model="showing") == []


@on_sqlite
def test_a_server_that_cannot_be_reached_is_a_problem_of_its_url(client: TestClient) -> None:
    ((place, message),) = problems(client, {"type": "python"}, mcp("http://127.0.0.1:1/mcp"))
    assert place == f"{PLACE}[1].server_url"
    assert message.startswith(f"{PLACE}[1].server_url: 127.0.0.1: no connection")


@on_sqlite
def test_a_tool_that_the_server_does_not_have_is_a_problem(client: TestClient, shop: str) -> None:
    ((place, message),) = problems(client, mcp(shop, allowed_tools=["divide"]))
    assert place == f"{PLACE}[0].allowed_tools"
    assert "the server has no tool divide; it has" in message


@on_sqlite
def test_two_tools_of_one_name_are_refused_with_both_places(client: TestClient, shop: str) -> None:
    own = {"type": "http", "name": "add", "url": "https://example.com/"}
    ((place, message),) = problems(client, own, mcp(shop, allowed_tools=["add", "count"]))
    assert place == f"{PLACE}[1].server_url"
    assert message.endswith("tools[0] and tools[1] both have a tool add")


@on_sqlite
@pytest.mark.parametrize(
    "url", ["http://tools.example.com/mcp", "https://10.0.0.1/mcp", "https://db.internal/", "https://[::1]/"]
)
def test_urls_into_the_inside_are_refused_before_any_connection(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.delenv("GRPO_ALLOWED_HOSTS")
    answer = client.post("/v1/fine_tuning/jobs", json=request(upload(client), method=with_tools(mcp(url))))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"{PLACE}[0].server_url")


@on_sqlite
@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"require_approval": "always"}, "require_approval"),
        ({"headers": {"Host": "x"}}, "headers"),
        ({"headers": {"A": "b\r\nC: d"}}, "headers"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"allowed_tools": ["a b"]}, "allowed_tools[0]"),
    ],
)
def test_an_unsupported_option_is_refused_at_its_field(
    client: TestClient, more: dict[str, Any], field: str
) -> None:
    answer = client.post(
        "/v1/fine_tuning/jobs",
        json=request(upload(client), method=with_tools(mcp("https://tools.example.com/", **more))),
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"{PLACE}[0].{field}")


@on_sqlite
def test_without_the_package_no_worker_can_run_the_job_and_the_service_checks_nothing(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "is_installed", lambda: False)
    monkeypatch.setattr(machines.mcp_tools, "is_installed", lambda: False)
    found = report(client, mcp("https://tools.example.com/"))
    assert [each["param"] for each in found["problems"]] == [f"{PLACE}[0]"]
    assert "pip install 'grpo-service[mcp]'" in found["problems"][0]["message"]
    monkeypatch.setattr(
        "service.jobs.intake.preflight.known_machines", lambda *_: [Machine(frozenset({MCP}))]
    )
    found = report(client, mcp("https://tools.example.com/"))
    assert found["valid"] is True
    assert "mcp_unchecked" in [each["code"] for each in found["warnings"]]
