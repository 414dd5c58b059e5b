"""No secret leaks: real processes in one scenario, and a search through everything that they have written."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from examples.tiny_model import make_model
from grpo_engine.sandbox import PythonServer
from tests.e2e.canaries import LockedRedis, Output, deployment, store, story
from tests.service.embedded import write_rows
from tests.support.servers import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Output]:
    home = tmp_path_factory.mktemp("canaries") / "home"
    model = make_model(home.parent / "tiny", hidden=32, layers=1)
    rows = write_rows(home.parent / "rows.jsonl", faults={"step_seconds": 0.05})
    with (
        Postgres() as postgres,
        LockedRedis() as redis,
        store() as store_url,
        deployment(home, model, postgres, redis, store_url) as running,
    ):
        yield story(running, postgres, redis, store_url, rows)


def lines_of(output: Output, source: str) -> list[dict[str, Any]]:
    """When Celery is stopped, it writes one line without a logger."""
    lines = (line for line in output.texts[source].splitlines() if line)
    return [json.loads(line) for line in lines if line != "worker: Warm shutdown (MainProcess)"]


def test_no_log_response_row_or_command_contains_a_secret(output: Output) -> None:
    assert set(output.texts) == {"answers", "api", "cli", "engine logs", "maintenance", "rows", "worker"}
    assert [source for source, text in output.texts.items() if len(text) < 10] == []
    assert output.leaks() == []


def test_the_engine_receives_only_the_signing_key(output: Output) -> None:
    found = [name for name, secret in output.secrets.items() if secret in output.engine_environment]
    assert found == ["signature"]


@pytest.mark.parametrize("source", ["api", "worker", "maintenance"])
def test_every_log_line_is_one_json_object(output: Output, source: str) -> None:
    lines = lines_of(output, source)
    assert lines
    assert [line for line in lines if not {"event", "level", "timestamp"} <= set(line)] == []


def test_log_lines_about_a_job_name_the_attempt(output: Output) -> None:
    lines = lines_of(output, "worker")
    (started,) = [line for line in lines if line["event"] == "engine started"]
    assert (started["tenant"], started["attempt"], started["fence"]) == ("acme", 1, 1)
    assert started["job"].startswith("ftjob-")
    assert ":" in started["worker"]


def test_a_bug_is_logged_as_one_line_with_its_trace_and_without_data(output: Output) -> None:
    lines = lines_of(output, "api")
    (line,) = [line for line in lines if line["event"] == "unexpected error"]
    assert (line["route"], line["tenant"]) == ("/v1/files", "acme")
    assert "UndefinedFunction" in line["exception"]
    assert "[parameters:" not in line["exception"]


def test_the_sandbox_receives_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ENDPOINT_SECRET", "canarySandbox")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canarySandbox")
    source = "import os\ndef grade(sample, item): print(sorted(os.environ.items())); return 1"
    with PythonServer(source) as server:
        outcome = server.call({}, {}, 10)
    assert outcome.output.startswith("[")
    assert "GRPO" not in outcome.output
    assert "canary" not in outcome.output
