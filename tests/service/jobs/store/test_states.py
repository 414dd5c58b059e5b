"""Jobs in every state: their responses, their list, and the requests that they accept."""

from time import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai.types.fine_tuning import FineTuningJob
from sqlalchemy import select

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.tables.core import AuditEntry, Job
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import on_sqlite
from tests.service.job_samples import METHOD, add_artifact, add_job, report_machine

JOBS = "/v1/fine_tuning/jobs"
ADDED = {"queue", "progress", "phase", "attempt", "warnings", "eval", "artifacts", "failure"}


def read(client: TestClient, job_id: str) -> dict[str, Any]:
    answer = client.get(f"{JOBS}/{job_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("state", list(JobState))
@on_sqlite
def test_strict_parsers_accept_the_answer_in_every_state(
    client: TestClient, settings: Settings, database: Database, state: JobState
) -> None:
    job_id = add_job(database, state, labels={"k": "v"})
    if state is JobState.SUCCEEDED:
        add_artifact(settings, database, job_id, "metrics", b"step\n")
    answer = read(client, job_id)
    assert answer.keys() >= ADDED
    shown = {JobState.CANCELLING: "running", JobState.PAUSING: "running"}.get(state, state.value)
    assert answer["status"] == shown
    if state is JobState.PAUSED:
        answer["status"] = "queued"  # OpenAI's service answers "paused", of which its own type does not know
    FineTuningJob.model_validate(answer)


@on_sqlite
def test_strict_parsers_accept_a_supervised_job(client: TestClient, database: Database) -> None:
    method = METHOD.dump_python(METHOD.validate_python({"type": "supervised"}), mode="json")
    answer = read(client, add_job(database, JobState.SUCCEEDED, method=method, fine_tuned_model="ft:a:b::c"))
    parsed = FineTuningJob.model_validate(answer)
    assert parsed.hyperparameters.n_epochs == "auto"
    assert parsed.fine_tuned_model == "ft:a:b::c"


@pytest.mark.parametrize("state", [JobState.CANCELLING, JobState.PAUSING])
@on_sqlite
def test_a_request_to_a_running_job_becomes_its_phase(
    client: TestClient, database: Database, state: JobState
) -> None:
    assert read(client, add_job(database, state))["phase"] == state.value


def test_a_running_job_estimates_its_remaining_time(client: TestClient, database: Database) -> None:
    actual = {"steps": 4, "running_seconds": 20.0}
    answer = read(client, add_job(database, JobState.RUNNING, actual=actual))
    assert answer["phase"] == "training"
    assert answer["queue"] == {"position": None, "reason": None}
    progress = answer["progress"]
    assert (progress["step"], progress["total_steps"]) == (4, 10)
    assert progress["seconds_remaining"] == 30  # 4 steps took 20 s, 6 are left
    assert answer["estimated_finish"] - answer["started_at"] == pytest.approx(50, abs=6)


def test_a_pause_of_a_night_does_not_lengthen_the_remaining_time(
    client: TestClient, database: Database
) -> None:
    actual = {"steps": 4, "running_seconds": 20.0}
    job_id = add_job(database, JobState.RUNNING, started_at=time() - 40_000, actual=actual)
    assert read(client, job_id)["progress"]["seconds_remaining"] == 30


def test_a_failed_job_shows_the_reason(client: TestClient, database: Database) -> None:
    answer = read(client, add_job(database, JobState.FAILED))
    assert answer["error"] == {"code": "no_signal", "message": "m", "param": None}
    assert answer["failure"] == {"code": "no_signal", "message": "m", "hint": "h", "evidence": []}
    assert answer["finished_at"] is not None


def test_a_retried_job_shows_when_it_continues(client: TestClient, database: Database) -> None:
    report_machine(database)
    job_id = add_job(database, JobState.QUEUED, attempt=2)
    with database.transaction() as session:
        job = session.scalars(select(Job)).one()
        job.not_before = job.created_at + 60
    reason = read(client, job_id)["queue"]["reason"]
    assert reason.startswith("retrying after attempt 2 in ")
    assert reason.endswith(" s")


def test_result_files_are_the_csv_and_then_the_adapter(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    adapter = add_artifact(settings, database, job_id, "adapter", b"weights")
    table = add_artifact(settings, database, job_id, "metrics", b"step\n")
    answer = read(client, job_id)
    assert answer["result_files"] == [table, adapter]
    assert [(one["kind"], one["step"], one["bytes"]) for one in answer["artifacts"]] == [
        ("metrics", 10, 5),
        ("adapter", 10, 7),
    ]
    assert client.get(f"/v1/files/{adapter}/content").content == b"weights"


@pytest.mark.parametrize(
    ("verb", "state", "status", "phase"),
    [
        ("cancel", JobState.QUEUED, "cancelled", "cancelled"),
        ("cancel", JobState.PAUSED, "cancelled", "cancelled"),
        ("cancel", JobState.CANCELLED, "cancelled", "cancelled"),
        ("cancel", JobState.RUNNING, "running", "cancelling"),
        ("pause", JobState.QUEUED, "paused", "paused"),
        ("pause", JobState.RUNNING, "running", "pausing"),
        ("resume", JobState.PAUSED, "queued", "queued"),
        # repeated, because its answer was lost
        ("cancel", JobState.CANCELLING, "running", "cancelling"),
        ("pause", JobState.PAUSED, "paused", "paused"),
        ("resume", JobState.QUEUED, "queued", "queued"),
        ("resume", JobState.RUNNING, "running", "training"),
    ],
)
def test_a_job_accepts_a_request(
    client: TestClient, database: Database, verb: str, state: JobState, status: str, phase: str
) -> None:
    job_id = add_job(database, state)
    answer = client.post(f"{JOBS}/{job_id}/{verb}")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["status"], answer.json()["phase"]) == (status, phase)
    assert read(client, job_id)["status"] == status
    with database.reading() as session:
        assert session.scalars(select(AuditEntry.action).where(AuditEntry.object_id == job_id)).all() == [
            f"job.{verb}"
        ]


@pytest.mark.parametrize(
    ("verb", "state", "message"),
    [
        ("cancel", JobState.SUCCEEDED, "The job has already succeeded."),
        ("cancel", JobState.FAILED, "The job has already failed."),
        ("pause", JobState.CANCELLED, "The job is already cancelled."),
        ("resume", JobState.PAUSING, "A job that is pausing cannot be resumed."),
        ("pause", JobState.CANCELLING, "A job that is cancelling cannot be paused."),
    ],
)
@on_sqlite
def test_what_the_state_does_not_allow_is_a_400(
    client: TestClient, database: Database, verb: str, state: JobState, message: str
) -> None:
    job_id = add_job(database, state)
    answer = client.post(f"{JOBS}/{job_id}/{verb}")
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == ("invalid_state", message)
    assert read(client, job_id)["phase"] in (state.value, "training")


def test_the_list_goes_back_in_time_page_by_page(client: TestClient, database: Database) -> None:
    ids = [add_job(database, JobState.QUEUED, created_at=float(second)) for second in range(5)]
    first = client.get(JOBS, params={"limit": 3}).json()
    second = client.get(JOBS, params={"limit": 3, "after": first["last_id"]}).json()
    assert [job["id"] for job in first["data"] + second["data"]] == ids[::-1]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert client.get(JOBS, params={"after": ids[0]}).json()["data"] == []


@pytest.mark.parametrize("after", ["ftjob-absent", ""])
def test_an_unknown_cursor_is_refused(client: TestClient, after: str) -> None:
    answer = client.get(JOBS, params={"after": after})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after")


@pytest.mark.parametrize("name", ["team", "a b", "a.b", "a'b", 'a"b', "a[0]", "é", "1"])
def test_jobs_are_found_by_metadata(client: TestClient, database: Database, name: str) -> None:
    mine = add_job(database, JobState.QUEUED, labels={name: "x", "other": "y"})
    add_job(database, JobState.QUEUED, labels={name: "z"})
    plain = add_job(database, JobState.QUEUED)

    def found(params: dict[str, str]) -> list[str]:
        return [job["id"] for job in client.get(JOBS, params=params).json()["data"]]

    assert found({f"metadata[{name}]": "x"}) == [mine]
    assert found({f"metadata[{name}]": "x", "metadata[other]": "y"}) == [mine]
    assert found({f"metadata[{name}]": "x", "metadata[other]": "n"}) == []
    assert found({"metadata": "null"}) == [plain]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("POST", "/cancel"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/events"),
        ("GET", "/checkpoints"),
        ("GET", "/metrics"),
        ("GET", "/metrics.csv"),
        ("GET", "/rollouts"),
        ("GET", "/rollouts.jsonl"),
        ("GET", "/stream"),
        ("GET", "/adapter"),
        ("GET", "/checkpoints/ftckpt_1/content"),
    ],
)
@on_sqlite
def test_a_foreign_job_does_not_exist(
    client: TestClient, other_client: TestClient, database: Database, method: str, path: str
) -> None:
    job_id = add_job(database, JobState.RUNNING)
    answer = other_client.request(method, f"{JOBS}/{job_id}{path}")
    absent = other_client.request(method, f"{JOBS}/{job_id[:-1]}_{path}")
    assert (answer.status_code, absent.status_code) == (404, 404)
    assert answer.json()["error"]["code"] == absent.json()["error"]["code"]
    assert other_client.get(JOBS).json()["data"] == []
    assert read(client, job_id)["phase"] == "training"


def test_a_key_that_only_reads_cannot_cancel(anonymous: TestClient, database: Database) -> None:
    with database.transaction() as session:
        key = create_key(session, "tenant-a", scopes=("read",))
    job_id = add_job(database, JobState.QUEUED)
    headers = {"authorization": f"Bearer {key}"}
    assert anonymous.get(f"{JOBS}/{job_id}", headers=headers).status_code == 200
    assert anonymous.post(f"{JOBS}/{job_id}/cancel", headers=headers).status_code == 403


SEVENTEEN = "&".join(f"metadata[k{number}]=x" for number in range(17))


@pytest.mark.parametrize(
    "query",
    [
        "metadata[]=x",
        "metadata[a=x",
        "metadata.a=x",
        "metadata[a]=1&metadata[a]=2",
        "metadata=x",
        "metadata",
        SEVENTEEN,
    ],
)
@on_sqlite
def test_a_malformed_metadata_filter_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"{JOBS}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "metadata")


def test_a_missing_job_is_reported_by_its_parameter(client: TestClient) -> None:
    error = client.get(f"{JOBS}/ftjob-absent").json()["error"]
    assert (error["code"], error["param"]) == ("job_not_found", "fine_tuning_job_id")
