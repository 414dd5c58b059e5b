"""Lines of the log: one shape for all loggers, what a request is on each, and what they do not show."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.app import create_app
from service.platform import logs
from service.settings import Settings
from tests.conftest import on_sqlite, settings_for


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    """An application of its own, as some tests add routes."""
    return create_app(settings)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    """Configured logs; call it for what was written since."""
    logs.configure()
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_the_standard_librarys_lines_have_our_shape(lines: Any) -> None:
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    (line,) = lines()
    assert (line["event"], line["level"], line["logger"]) == (
        "Started server process [7]",
        "info",
        "uvicorn.error",
    )
    assert line["timestamp"].endswith("Z")


def test_an_exception_of_a_library_is_one_line_with_its_trace(lines: Any) -> None:
    try:
        raise OSError("redis://:hidden@host:1/0 is away")
    except OSError:
        logging.getLogger("celery.worker").exception("broke")
    (line,) = lines()
    assert line["exception"].splitlines()[-1] == "OSError: redis://:***@host:1/0 is away"


def test_bound_fields_are_added_to_the_lines_of_libraries(lines: Any) -> None:
    with structlog.contextvars.bound_contextvars(job="ftjob-1", fence=3):
        logging.getLogger("service.jobs.store.wakeups").warning("not sent")
    (line,) = lines()
    assert (line["job"], line["fence"]) == ("ftjob-1", 3)


@pytest.mark.parametrize("name", ["httpx", "alembic.runtime.migration", "urllib3"])
def test_a_library_that_logs_whole_urls_only_warns(lines: Any, name: str) -> None:
    logging.getLogger(name).info("GET https://host/?key=1")
    assert lines() == []


def test_configured_twice_a_line_is_still_written_once(lines: Any) -> None:
    logs.configure()
    logging.getLogger("celery").info("once")
    assert len(lines()) == 1


def test_the_level_applies_to_both_loggers(lines: Any) -> None:
    logs.configure("WARNING")
    logging.getLogger("celery").info("low")
    structlog.get_logger().info("low")
    assert lines() == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer grpo", "Authorization: Bearer ***"),
        ("postgresql://u:a/b@host/db", "postgresql://u:***@host/db"),
        ("https://s3/x?X-Amz-Signature=abc&y=1", "https://s3/x?X-Amz-Signature=***&y=1"),
        ("host=h password=p1 user=u", "host=h password=*** user=u"),
        ("whsec_YWJj", "whsec_***"),
        ("://a" * 100_000, "://a" * 100_000),  # in a second, not in minutes
        ("http://127.0.0.1:8000/v1 reward=0.5", "http://127.0.0.1:8000/v1 reward=0.5"),
    ],
)
def test_secrets_inside_texts_are_masked(text: str, shown: str) -> None:
    assert logs.mask(text) == shown


def test_secrets_deep_inside_a_field_are_masked(lines: Any) -> None:
    structlog.get_logger().info(
        "died", log=("connecting", "to redis://:hidden@host"), extra={"a": ["Bearer x"]}
    )
    (line,) = lines()
    assert (line["log"][1], line["extra"]) == ("to redis://:***@host", {"a": ["Bearer ***"]})


def test_uncaught_exceptions_are_logged_in_every_thread() -> None:
    script = (
        "import threading; from service.platform import logs; logs.own_process('INFO')\n"
        "def fail(): raise ValueError('in a thread')\n"
        "thread = threading.Thread(target=fail, name='helper'); thread.start(); thread.join()\n"
        "raise ValueError('at the end')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    first, second = (json.loads(line) for line in done.stderr.splitlines())
    assert done.returncode == 1
    assert (first["event"], first["thread"]) == ("uncaught exception", "helper")
    assert second["exception"].splitlines()[-1] == "ValueError: at the end"


@on_sqlite
def test_every_line_of_a_request_names_its_tenant_and_key(
    app: FastAPI, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    app.add_api_route("/fail", fail)
    client.get("/v1/files/file-1", headers={"x-request-id": "trace-9"})
    client.get("/fail", headers={"x-request-id": "trace-10"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    found, bug, answered = (line for line in lines if line.get("request_id", "").startswith("trace-"))
    assert (found["route"], found["tenant"], found["status"]) == ("/v1/files/{file_id}", "tenant-a", 404)
    assert len(found["key_id"]) == 16
    assert (bug["event"], bug["route"], bug["request_id"]) == ("unexpected error", "/fail", "trace-10")
    assert (answered["status"], answered["request_id"]) == (500, "trace-10")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "postgresql://u:hidden@host:port/db"),
        ("database_url", "postgresql://u:p@hidden@host:5432/db"),
        ("database_url", "postgresql://u:p@:/hidden@host:5432/db"),
        ("broker_url", "redis://:hidden/x@host:6379/0"),
        ("broker_url", "redis://:hid#den@host:6379/0"),
    ],
)
def test_a_broken_url_is_refused_without_being_shown(tmp_path: Any, name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a URL") as raised:
        settings_for(tmp_path, **{name: value})
    assert "hid" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"self_fence_seconds": 500}, "GRPO_SELF_FENCE_SECONDS must be shorter"),
        ({"gpus": 2, "slots": 3}, "GRPO_SLOTS is 3, but each slot needs a GPU and GRPO_GPUS is 2"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_without_their_passwords(
    tmp_path: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        settings_for(tmp_path, "postgresql://u:hidden@h/db", **given)
    assert "hidden" not in str(raised.value)


def test_a_line_that_a_full_disk_refuses_ends_nothing() -> None:
    script = (
        "import logging, structlog; from service.platform import logs; logs.own_process('INFO'); "
        "structlog.get_logger().info('ours'); logging.getLogger('service').info('theirs'); print('the end')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"the end\n")
