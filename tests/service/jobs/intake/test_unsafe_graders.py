"""GRPO_UNSAFE_GRADERS: untrusted code without a sandbox, for the only tenant there is, never in silence."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs

from grpo_engine.sandbox import monty
from grpo_engine.sandbox.capability import Capability
from service.app import create_app
from service.jobs.store import machines
from service.platform.db import Database
from service.settings import Settings
from service.web.auth import create_key, revoke_key
from tests.conftest import on_sqlite
from tests.service.job_samples import jsonl, make_model, reinforcement, request, row, upload

TESTS = reinforcement({"type": "code_tests", "tests": "{{item.tests}}"})
ROWS = jsonl(row(tests=[{"call": "f", "args": [1], "expected": 1}]))
JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def unsafe(settings: Settings, api_key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A deployment on a machine without a sandbox whose operator insists."""
    make_model(settings.home)
    monkeypatch.setattr(machines, "self_test", lambda: Capability(None, reason="no bwrap"))
    monkeypatch.setattr(monty, "installed", lambda: False)
    insisting = settings.model_copy(update={"unsafe_graders": "single-tenant"})
    with TestClient(create_app(insisting), headers={"authorization": f"Bearer {api_key}"}) as client:
        yield client


@on_sqlite
def test_the_only_tenants_job_is_accepted_and_marked(unsafe: TestClient) -> None:
    job = unsafe.post(JOBS, json=request(upload(unsafe, ROWS), method=TESTS))
    assert job.status_code == 200, job.text
    assert "unsafe_graders" in [warning["code"] for warning in job.json()["warnings"]]


@on_sqlite
def test_a_job_without_untrusted_code_is_not_marked(unsafe: TestClient) -> None:
    job = unsafe.post(JOBS, json=request(upload(unsafe), method=reinforcement()))
    assert "unsafe_graders" not in [warning["code"] for warning in job.json()["warnings"]]


@on_sqlite
def test_with_a_second_tenant_everybody_is_refused_until_its_key_is_revoked(
    unsafe: TestClient, database: Database
) -> None:
    body = request(upload(unsafe, ROWS), method=TESTS)
    with database.transaction() as session:
        other = create_key(session, "other")
    for key in (None, other):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        answer = unsafe.post(JOBS, json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "sandbox_unavailable")
    with database.transaction() as session:
        revoke_key(session, other.split("_")[1])
    assert unsafe.post(JOBS, json=body).status_code == 200


@on_sqlite
def test_a_worker_logs_the_state_of_its_sandbox_at_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    insisting = settings.model_copy(update={"unsafe_graders": "single-tenant"})
    with capture_logs() as logged:
        machines.log_sandbox_state(settings)
        monkeypatch.setattr(machines, "self_test", lambda: Capability(None, reason="not contained: network"))
        machines.log_sandbox_state(settings)
        machines.log_sandbox_state(insisting)
    assert [(line["log_level"], line.get("reason", "")) for line in logged] == [
        ("info", ""),
        ("warning", "not contained: network"),
        ("warning", "not contained: network"),
    ]
    assert ["UNSAFE" in line["event"] for line in logged] == [False, False, True]


def test_production_requires_the_longer_value(tmp_path: Path) -> None:
    given = {
        "home": tmp_path,
        "mode": "production",
        "database_url": SecretStr("postgresql://u@127.0.0.1/none"),
        "broker_url": SecretStr("redis://127.0.0.1:9/0"),
    }
    with pytest.raises(ValidationError, match="single-tenant-production"):
        Settings.model_validate({**given, "unsafe_graders": "single-tenant"})
    insisting = Settings.model_validate({**given, "unsafe_graders": "single-tenant-production"})
    assert insisting.allows_unsafe
    assert not Settings.model_validate(given).allows_unsafe
