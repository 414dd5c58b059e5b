"""`grpo merge`: awaits an export of a job and unpacks it, or says why there is none."""

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.progress import logs
from service.jobs.progress.logs import PrintedLines
from service.platform.archives import pack
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.embedded import call_grpo
from tests.service.job_samples import finish_export
from tests.service.jobs.results.conftest import add_tuned
from tests.support.servers import wait_until

pytestmark = on_sqlite  # nothing here depends on the database

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def environment(server_url: str, api_key: str) -> dict[str, str]:
    return {**os.environ, "GRPO_URL": server_url, "GRPO_API_KEY": api_key}


def test_the_command_creates_waits_downloads_and_unpacks(
    client: TestClient, environment: dict[str, str], settings: Settings, database: Database, job_id: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text("{}")
    pack(tmp_path / "made", tmp_path / "made.tar")
    content = (tmp_path / "made.tar").read_bytes()

    def work() -> None:
        """A worker's part."""
        place = f"{JOBS}/{job_id}/exports"
        wait_until(lambda: bool(client.get(place).json()["data"]), 120, "the command has created an export")
        finish_export(settings, database, client.get(place).json()["data"][0]["id"], content)

    worker = threading.Thread(target=work)
    worker.start()
    done = call_grpo("merge", job_id, "--to", tmp_path / "out" / "model", "--json", environment=environment)
    worker.join()
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["sha256"] == hashlib.sha256(content).hexdigest()
    assert printed["serve"] == f"vllm serve {tmp_path}/out/model --served-model-name {job_id}"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]
    assert (tmp_path / "out" / "model" / "config.json").read_text() == "{}"
    again = call_grpo("merge", job_id, "--to", tmp_path / "out" / "model", environment=environment)
    assert (again.returncode, "already exists" in again.stderr) == (1, True)


def test_the_command_shows_why_an_export_is_refused(
    environment: dict[str, str], settings: Settings, database: Database, tmp_path: Path
) -> None:
    job_id = add_tuned(settings, database)
    refused = call_grpo("merge", job_id, "--to", tmp_path / "model", environment=environment)
    assert (refused.returncode, "base_model_missing" in refused.stderr) == (1, True)


def test_the_command_names_the_log_of_a_failed_export(
    client: TestClient, environment: dict[str, str], database: Database, job_id: str, tmp_path: Path
) -> None:
    place = f"{JOBS}/{job_id}/exports"

    def fail() -> None:
        """A worker's part."""
        wait_until(lambda: bool(client.get(place).json()["data"]), 120, "the command has created an export")
        with database.transaction() as session:
            row = session.get_one(Job, client.get(place).json()["data"][0]["id"])
            row.failure = {"code": "not_mergeable", "message": "It does not fit.", "hint": "", "evidence": []}
            row.state = JobState.FAILED.value
            logs.append(session, row.id, 1, [PrintedLines(0, ["what it was"])], after=0)

    worker = threading.Thread(target=fail)
    worker.start()
    ended = call_grpo("merge", job_id, "--to", tmp_path / "model", environment=environment)
    worker.join()
    (export,) = client.get(place).json()["data"]
    command = f"logs {job_id} --export {export['id']}"
    assert (ended.returncode, f"`grpo {command}`" in ended.stderr) == (1, True)
    assert call_grpo(*command.split(), environment=environment).stdout == "what it was\n"
