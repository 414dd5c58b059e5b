"""`grpo share`, and the admin keys and shares of `grpo keys`."""

import json

import httpx
import pytest

from service.jobs.model.states import JobState
from service.platform.db import Database
from tests.conftest import on_sqlite
from tests.service.cli.command import Grpo
from tests.service.job_samples import add_job

pytestmark = on_sqlite  # `grpo keys` uses the database in the home folder

JOBS = "/v1/fine_tuning/jobs"
DAY = 24 * 3600


@pytest.fixture
def job_id(database: Database) -> str:
    return add_job(database, JobState.SUCCEEDED)


def status(server_url: str, job_id: str, link: str) -> int:
    headers = {"authorization": f"Bearer {link.rpartition('/')[2]}"}
    return httpx.get(f"{server_url}{JOBS}/{job_id}", headers=headers, timeout=60).status_code


def test_a_link_is_printed_listed_and_revoked(grpo: Grpo, server_url: str, job_id: str) -> None:
    link = grpo("share", job_id, "--days", "30").strip()
    assert link.startswith(f"{server_url}/#/shared/grpo_")
    assert status(server_url, job_id, link) == 200
    (listed,) = json.loads(grpo("share", job_id, "--list", "--json"))
    assert listed["expires_at"] - listed["created_at"] == 30 * DAY
    assert listed["id"] in grpo("share", job_id, "--list")
    assert job_id in grpo("keys", "list", "--json")
    assert grpo("share", job_id, "--revoke", listed["id"]).strip() == f"{listed['id']} revoked"
    assert status(server_url, job_id, link) == 401
    assert json.loads(grpo("share", job_id, "--list", "--json")) == []


def test_a_link_that_does_not_exist_is_not_revoked(grpo: Grpo, job_id: str) -> None:
    code, error = grpo.error("share", job_id, "--revoke", "x", "--json")
    assert (code, error["code"], error["param"]) == (1, "not_found", "share_id")


def test_a_link_cannot_be_listed_and_revoked_at_once(grpo: Grpo, job_id: str) -> None:
    code, error = grpo.error("share", job_id, "--revoke", "x", "--list", "--json")
    assert (code, error["message"]) == (1, "--list and --revoke exclude each other")


def test_an_admin_key_is_made_by_the_command_and_lists_keys(grpo: Grpo, server_url: str) -> None:
    made = json.loads(grpo("keys", "create", "--tenant", "operators", "--admin", "--json"))
    assert made["scopes"] == ["read", "write", "admin"]
    headers = {"authorization": f"Bearer {made['key']}"}
    listed = httpx.get(f"{server_url}/v1/keys", headers=headers, timeout=60).json()["data"]
    assert made["id"] in [one["id"] for one in listed]
