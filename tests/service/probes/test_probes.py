"""Probes over HTTP: checked and created once like jobs, cancelled, and read with their verdict."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.sinks import JobSink
from service.settings import Settings
from tests.service.job_samples import add_job, expanded, jsonl, make_model, num_jobs, request, row, store_file

PROBES = "/v1/fine_tuning/probes"
COUNTS = {
    "prompts": 4,
    "completions": 32,
    "passed": 6,
    "groups_with_signal": 3,
    "groups_solved": 0,
    "truncated": 8,
    "grader_errors": 2,
    "grader_error": "exact: other_error: it broke",
    "mean_reward": 0.2,
    "highest_reward": 1.0,
    "completion_tokens": 320,
    "sample_seconds": 4.0,
    "score_seconds": 0.5,
    "peak_memory_bytes": 10**9,
}
pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def training_file(settings: Settings, database: Database) -> str:
    make_model(settings.home)
    return store_file(settings, database, jsonl(row(), row("What is 3+3?", "6")))


def test_a_probe_is_queued_like_a_job(client: TestClient, training_file: str) -> None:
    client.post("/v1/fine_tuning/jobs", json=request(training_file)).raise_for_status()
    probe = client.post(PROBES, json=request(training_file, probe={"prompts": 2})).json()
    assert probe["id"].startswith("ftprobe-")
    assert (probe["object"], probe["status"], probe["prompts"]) == ("fine_tuning.probe", "queued", 2)
    assert (probe["queue"]["position"], probe["result"], probe["groups"]) == (2, None, [])
    assert client.get(f"{PROBES}/{probe['id']}").json() == probe


def test_a_request_that_a_job_would_be_refused_for_is_refused(client: TestClient, training_file: str) -> None:
    body = request(training_file)
    body["method"]["reinforcement"]["grader"] = {
        "type": "numeric",
        "reference": "{{item.nothing}}",
    }
    refused = client.post(PROBES, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "training_file[1].nothing"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"probe": {"prompts": 0}}, "probe.prompts"),
        ({"probe": {"rows": 4}}, "probe.rows"),
        ({"method": {"type": "supervised", "supervised": {}}}, "method.type"),
    ],
)
def test_an_invalid_probe_is_refused_by_field(
    client: TestClient, training_file: str, more: dict[str, Any], param: str
) -> None:
    refused = client.post(PROBES, json=request(training_file, **more))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_same_request_twice_makes_one_probe(
    client: TestClient, training_file: str, database: Database
) -> None:
    headers = {"Idempotency-Key": "once"}
    first, second = (client.post(PROBES, json=request(training_file), headers=headers) for _ in range(2))
    assert second.headers["Idempotency-Replayed"] == "true"
    assert first.json() == second.json()
    as_job = client.post("/v1/fine_tuning/jobs", json=request(training_file), headers=headers)
    assert (as_job.status_code, num_jobs(database)) == (422, 1)


def test_a_probe_has_no_sinks(client: TestClient, training_file: str, database: Database) -> None:
    sink = {"type": "wandb", "wandb": {"project": "sums"}}
    client.post(PROBES, json=request(training_file, integrations=[sink])).raise_for_status()
    with database.reading() as session:
        assert session.scalars(select(JobSink)).all() == []
        assert session.scalars(select(Job.integrations)).one() is None


def test_a_waiting_probe_is_cancelled_once(client: TestClient, training_file: str) -> None:
    probe = client.post(PROBES, json=request(training_file)).json()
    assert client.post(f"{PROBES}/{probe['id']}/cancel").json()["status"] == "cancelled"
    assert client.post(f"{PROBES}/{probe['id']}/cancel").json()["status"] == "cancelled"


def test_a_finished_probe_is_not_cancelled(client: TestClient, database: Database) -> None:
    probe_id = add_probe(database, JobState.FAILED)
    refused = client.post(f"{PROBES}/{probe_id}/cancel")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_state")
    assert "has already failed" in refused.json()["error"]["message"]


def test_no_verb_of_jobs_reaches_a_probe(client: TestClient, training_file: str) -> None:
    probe = client.post(PROBES, json=request(training_file)).json()
    for verb in ("cancel", "pause", "resume"):
        refused = client.post(f"/v1/fine_tuning/jobs/{probe['id']}/{verb}")
        assert refused.json()["error"]["code"] == "job_not_found"
    assert client.get(f"{PROBES}/{probe['id']}").json()["status"] == "queued"


def test_counts_are_reported_as_rates(client: TestClient, database: Database) -> None:
    result = client.get(f"{PROBES}/{add_probe(database, JobState.SUCCEEDED, COUNTS)}").json()["result"]
    assert result["pass_rate"] == 0.2
    assert (result["signal_share"], result["truncated_share"]) == (0.75, 0.25)
    assert (result["mean_completion_tokens"], result["tokens_per_second"]) == (10, 80)
    assert result["can_learn"] == "maybe"
    assert result["sentence"].startswith("25% of the completions were cut at 16 tokens")
    assert result["advice"][0]["message"].startswith("Try 32;")


def test_probes_are_listed_newest_first_over_pages_and_no_job_is_among_them(
    client: TestClient, training_file: str, database: Database
) -> None:
    ids = [client.post(PROBES, json=request(training_file)).json()["id"] for _ in range(3)]
    job_id = add_job(database, JobState.QUEUED)
    first = client.get(PROBES, params={"limit": 2}).json()
    rest = client.get(PROBES, params={"limit": 2, "after": first["last_id"]}).json()
    assert [each["id"] for each in first["data"] + rest["data"]] == ids[::-1]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert first["data"][0] == client.get(f"{PROBES}/{ids[2]}").json()
    refused = client.get(PROBES, params={"after": job_id})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "after")


def test_a_list_has_the_results_of_probes(client: TestClient, database: Database) -> None:
    probe_id = add_probe(database, JobState.SUCCEEDED, COUNTS)
    (listed,) = client.get(PROBES).json()["data"]
    assert (listed["id"], listed["result"]["can_learn"], listed["groups"]) == (probe_id, "maybe", [])


def add_probe(database: Database, state: JobState, result: dict[str, Any] | None = None) -> str:
    """Id of a probe as a worker would have left it."""
    job_id = add_job(database, state, method=expanded())
    probe = {"prompts": 4} | ({"result": result} if result else {})
    with database.transaction() as session:
        row = session.get_one(Job, job_id)
        row.id, row.probe = job_id.replace("ftjob", "ftprobe"), probe
        return row.id
