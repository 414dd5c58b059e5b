"""What a job needs of the deployment, and is refused without: sandboxes, endpoints, models."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from grpo_engine.sandbox import monty
from grpo_engine.sandbox.capability import Capability
from grpo_engine.sandbox.launch import Interpreter
from service.app import create_app
from service.jobs.store import claiming, formats, machines
from service.jobs.store.machines import PYTHON_GRADERS, SANDBOX, Machine
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.workers import WorkerHost
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import GRADER, create, jsonl, make_model, reinforcement, request, row, upload
from tests.support.chat_server import ChatServer

pytestmark = pytest.mark.usefixtures("model")

PYTHON = {
    "type": "python",
    "source": "def grade(sample, item):\n    return float(item['answer'] in sample['output_text'])",
}
TESTS = {"type": "code_tests", "tests": "{{item.tests}}"}
JUDGE = {
    "type": "score_model",
    "model": "large",
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}
ROWS = jsonl(
    row(tests=[{"call": "f", "args": [1], "expected": 1}]),
    row("What is 3+3?", "6", tests=[{"call": "f", "args": [2], "expected": 2}]),
)
WHERE = "method.reinforcement.grader"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this a machine with these capabilities and, for python graders, pydantic-monty or not."""

    def make(*offered: str) -> None:
        interpreter = Interpreter("/usr/bin/python3", "/usr", "3.11") if SANDBOX in offered else None
        monkeypatch.setattr(machines, "self_test", lambda: Capability(interpreter))
        monkeypatch.setattr(monty, "installed", lambda: PYTHON_GRADERS in offered)

    return make


def problems(client: TestClient, method: dict[str, Any]) -> list[tuple[str, str]]:
    """Place and message of each."""
    body = request(upload(client, ROWS), method=method)
    report = client.post("/v1/fine_tuning/jobs/validate", json=body).json()
    return [(problem["param"], problem["message"]) for problem in report["problems"]]


def with_tool(**more: Any) -> dict[str, Any]:
    method = reinforcement(**more)
    method["reinforcement"]["tools"] = [{"type": "python"}]
    return method


@on_sqlite
@pytest.mark.parametrize(
    ("method", "place"),
    [
        (reinforcement(PYTHON), WHERE),
        (reinforcement(TESTS), WHERE),
        (reinforcement({"type": "process", "grader": TESTS}), f"{WHERE}.grader"),
        (
            reinforcement(
                {"type": "multi", "graders": {"a": GRADER, "b": PYTHON}, "calculate_output": "a+b"}
            ),
            f"{WHERE}.graders.b",
        ),
        (with_tool(), "method.reinforcement.tools[0]"),
    ],
    ids=["python", "code_tests", "process", "multi", "tool"],
)
def test_untrusted_code_is_refused_where_no_sandbox_holds(
    client: TestClient, machine: Callable[..., None], method: dict[str, Any], place: str
) -> None:
    machine()
    answer = client.post("/v1/fine_tuning/jobs", json=request(upload(client, ROWS), method=method))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, place, "sandbox_unavailable")


@on_sqlite
def test_jobs_without_untrusted_code_need_no_sandbox(
    client: TestClient, machine: Callable[..., None]
) -> None:
    machine()
    assert problems(client, reinforcement()) == []


@on_sqlite
def test_python_graders_of_the_subset_run_without_bubblewrap_and_others_are_refused(
    client: TestClient, machine: Callable[..., None]
) -> None:
    machine(PYTHON_GRADERS)
    assert problems(client, reinforcement(PYTHON)) == []
    beyond = {**PYTHON, "source": "import socket\ndef grade(sample, item):\n    return 1.0"}
    ((place, message),) = problems(client, reinforcement(beyond))
    assert place == f"{WHERE}.source"
    assert "subset of Python" in message
    assert [place for place, _ in problems(client, reinforcement(TESTS))] == [WHERE]


@on_sqlite
def test_the_row_of_a_job_has_its_requirements(client: TestClient, database: Database) -> None:
    file_id = upload(client, ROWS)
    for method in (reinforcement(), reinforcement(PYTHON), with_tool()):
        create(client, file_id, method=method)
    with database.reading() as session:
        found = session.scalars(select(Job.required_capabilities).order_by(Job.created_at, Job.id)).all()
    assert sorted(found) == ["", PYTHON_GRADERS, SANDBOX]


def test_a_worker_claims_only_what_its_machine_can_run(client: TestClient, database: Database) -> None:
    file_id = upload(client, ROWS)
    sandboxed = create(client, file_id, method=reinforcement(TESTS))["id"]
    graded = create(client, file_id, method=reinforcement(PYTHON))["id"]

    def claimed(*offered: str) -> str | None:
        with database.transaction() as session:
            job = claiming.claim(session, pool="default", worker="w", lease_seconds=60, capabilities=offered)
            return job.id if job else None

    assert claimed() is None
    assert claimed(PYTHON_GRADERS) == graded
    assert claimed(PYTHON_GRADERS) is None
    assert claimed(SANDBOX, PYTHON_GRADERS) == sandboxed


@pytest.fixture
def production(settings: Settings, api_key: str) -> Iterator[TestClient]:
    """A deployment whose workers are other machines."""
    elsewhere = settings.model_copy(update={"mode": "production"})
    with TestClient(create_app(elsewhere), headers={"authorization": f"Bearer {api_key}"}) as client:
        yield client


def test_workers_elsewhere_decide_in_production(
    production: TestClient, database: Database, machine: Callable[..., None]
) -> None:
    machine()
    assert problems(production, reinforcement(TESTS)) == []  # none is known: it may wait for one
    announce(database, "plain")
    assert [place for place, _ in problems(production, reinforcement(TESTS))] == [WHERE]
    announce(database, "other-pool", SANDBOX, pool="gpu")
    assert [place for place, _ in problems(production, reinforcement(TESTS))] == [WHERE]
    announce(database, "able", SANDBOX, PYTHON_GRADERS)
    assert problems(production, reinforcement(TESTS)) == []


def test_a_machine_reports_its_capabilities_and_is_deleted_when_silent(database: Database) -> None:
    announce(database, "one", SANDBOX)
    announce(database, "one", SANDBOX, PYTHON_GRADERS)
    announce(database, "two")
    with database.transaction() as session:
        found = machines.recent_machines(session, "default")
        offered = [machine.capabilities - formats.UNDERSTOOD for machine in found]
        assert sorted(map(len, offered)) == [0, 2]
        long_ago = db_now() - machines.KNOWN_SECONDS - 1
        session.execute(update(WorkerHost).where(WorkerHost.host == "one").values(seen_at=long_ago))
        assert machines.recent_machines(session, "default") == [Machine(formats.UNDERSTOOD)]
    announce(database, "two")
    with database.reading() as session:
        assert session.scalars(select(WorkerHost.host)).all() == ["two"]


def announce(database: Database, host: str, *offered: str, pool: str = "default") -> None:
    with database.transaction() as session:
        machines.announce(session, host, pool, Machine(frozenset(offered)))


@on_sqlite
def test_endpoints_that_the_operator_does_not_have_are_refused(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"type": "endpoint", "endpoint": "checker"}
    both = {
        "type": "multi",
        "graders": {"judge": JUDGE, "checker": named},
        "calculate_output": "judge*checker",
    }
    places = [f"{WHERE}.graders.judge.endpoint", f"{WHERE}.graders.checker.endpoint"]
    assert [place for place, _ in problems(client, reinforcement(both))] == places
    with ChatServer(lambda _: "1") as server:
        known = {"default": {"url": server.url, "models": ["large"]}, "checker": {"url": server.url}}
        (tmp_path / "endpoints.json").write_text(json.dumps(known))
        monkeypatch.setenv("GRPO_ENDPOINTS", str(tmp_path / "endpoints.json"))
        assert problems(client, reinforcement(both)) == []
        assert problems(client, reinforcement({**JUDGE, "model": "small"})) == [
            (f"{WHERE}.endpoint", f"{WHERE}.endpoint: the endpoint 'default' does not offer 'small'")
        ]
        ((place, message),) = problems(client, reinforcement({**JUDGE, "max_cost_usd": 1}))
        assert place == f"{WHERE}.max_cost_usd"
        assert "has set no prices" in message
    assert server.requests == []


@on_sqlite
@pytest.mark.parametrize(
    "url", ["http://grade.example.com/", "https://127.0.0.1/", "https://db.internal/", "https://[::1]/"]
)
def test_urls_into_the_inside_are_refused(client: TestClient, url: str) -> None:
    method = reinforcement({"type": "endpoint", "url": url})
    answer = client.post("/v1/fine_tuning/jobs", json=request(upload(client), method=method))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"{WHERE}.url")
    method = reinforcement()
    method["reinforcement"]["tools"] = [{"type": "http", "name": "look", "url": url}]
    answer = client.post("/v1/fine_tuning/jobs", json=request(upload(client), method=method))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "method.reinforcement.tools[0].url"


@on_sqlite
def test_tools_that_the_template_does_not_show_cause_a_warning(
    client: TestClient, settings: Settings
) -> None:
    showing = "{% if tools %}{{ tools|tojson }} {% endif %}{{ messages[0].content }}"
    make_model(settings.home, "showing", template=showing)
    found = []
    for model in ("tiny", "showing"):
        body = request(upload(client, ROWS), method=with_tool(), model=model)
        report = client.post("/v1/fine_tuning/jobs/validate", json=body).json()
        assert report["valid"] is True
        found.append([warning["code"] for warning in report["warnings"]])
    assert found == [["tools_not_shown"], ["tool_format_assumed"]]


WRITES = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
)
"""A template that shows tools and writes calls."""
HERMES = (
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}</tool_call>'
)


@on_sqlite
@pytest.mark.parametrize(
    ("call", "refused"), [(HERMES, None), ("[{{ c.function.name }}(x=1)]", "[probe_function(x=1)]")]
)
def test_a_job_with_tools_is_refused_if_the_models_calls_cannot_be_read(
    client: TestClient, settings: Settings, call: str, refused: str | None
) -> None:
    make_model(settings.home, "calling", template=WRITES.replace("CALL", call))
    answer = client.post(
        "/v1/fine_tuning/jobs", json=request(upload(client, ROWS), method=with_tool(), model="calling")
    )
    if refused is None:
        assert (answer.status_code, answer.json()["warnings"]) == (200, [])
        return
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_tool_format")
    assert error["param"] == "method.reinforcement.tools"
    assert refused in error["message"]
    assert "hermes (Hermes, Qwen2.5, Qwen3)" in error["message"]
    create(client, upload(client, ROWS), method=reinforcement(), model="calling")


@on_sqlite
def test_the_jobs_tools_count_among_a_prompts_tokens(client: TestClient, settings: Settings) -> None:
    make_model(settings.home, "showing", template="{{ tools|tojson }} {{ messages[0].content }}")
    method = with_tool()
    method["reinforcement"]["tools"][0]["description"] = "word " * 60
    body = request(upload(client, ROWS), method=method, model="showing")
    report = client.post("/v1/fine_tuning/jobs/validate", json=body).json()
    assert [problem["param"] for problem in report["problems"]] == [
        "training_file[1].messages",
        "training_file[2].messages",
    ]
