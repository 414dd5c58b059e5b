"""Downloads of weights: which ones, whole, in ranges, unchanged or absent."""

import hashlib
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.storage import open_storage
from service.platform.tables.core import Checkpoint
from service.settings import Settings
from service.web.downloads import content_disposition
from tests.conftest import on_sqlite
from tests.service.job_samples import add_artifact, add_checkpoint, add_job

pytestmark = on_sqlite  # one database is enough: no test here is about queries

JOBS = "/v1/fine_tuning/jobs"
CONTENT = bytes(range(256)) * 8192
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """A succeeded job whose final adapter is CONTENT."""
    job_id = add_job(database, JobState.SUCCEEDED)
    add_artifact(settings, database, job_id, "adapter", CONTENT)
    return job_id


def adapter(client: TestClient, job_id: str, *, headers: dict[str, str] | None = None, **params: Any) -> Any:
    return client.get(f"{JOBS}/{job_id}/adapter", params=params, headers=headers)


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_final_adapter_comes_with_its_digest(client: TestClient, job_id: str) -> None:
    answer = adapter(client, job_id)
    assert answer.status_code == 200
    assert answer.content == CONTENT
    assert answer.headers["etag"] == f'"{SHA256}"'
    assert answer.headers["x-checksum-sha256"] == SHA256
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["content-type"] == "application/gzip"
    assert f'filename="{job_id}-step-10.tar.gz"' in answer.headers["content-disposition"]


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=2097000-", 2_097_000, len(CONTENT)),
        ("bytes=-5", len(CONTENT) - 5, len(CONTENT)),
        ("bytes=5-99999999", 5, len(CONTENT)),
        ("bytes=-99999999", 0, len(CONTENT)),
    ],
)
def test_a_range_is_answered_in_part(
    client: TestClient, job_id: str, given: str, start: int, end: int
) -> None:
    answer = adapter(client, job_id, headers={"range": given})
    assert answer.status_code == 206
    assert answer.content == CONTENT[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("given", [f"bytes={len(CONTENT)}-", "bytes=99999999-", "bytes=-0"])
def test_a_range_outside_of_the_object_is_a_416(client: TestClient, job_id: str, given: str) -> None:
    answer = adapter(client, job_id, headers={"range": given})
    assert refusal(answer) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"


@pytest.mark.parametrize("given", ["bytes=0-1,5-6", "lines=0-1", "bytes=a-b", "bytes=-", "bytes=9-3"])
def test_an_invalid_range_gets_the_whole_content(client: TestClient, job_id: str, given: str) -> None:
    answer = adapter(client, job_id, headers={"range": given})
    assert (answer.status_code, len(answer.content)) == (200, len(CONTENT))


def test_a_range_of_another_version_gets_everything(client: TestClient, job_id: str) -> None:
    headers = {"range": "bytes=0-9", "if-range": '"old"'}
    assert adapter(client, job_id, headers=headers).status_code == 200
    assert adapter(client, job_id, headers={**headers, "if-range": f'"{SHA256}"'}).status_code == 206


@pytest.mark.parametrize("given", [f'"{SHA256}"', f'W/"{SHA256}"', f'"x", "{SHA256}"', "*"])
def test_what_the_client_has_is_not_sent_again(client: TestClient, job_id: str, given: str) -> None:
    answer = adapter(client, job_id, headers={"if-none-match": given})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == f'"{SHA256}"'


def test_a_job_without_weights_has_no_download(client: TestClient, database: Database) -> None:
    answer = adapter(client, add_job(database, JobState.RUNNING))
    assert refusal(answer) == (404, "no_adapter_yet")
    assert answer.json()["error"]["message"].endswith(" after checkpoint_interval steps.")
    assert refusal(adapter(client, add_job(database, JobState.FAILED))) == (404, "no_adapter_yet")


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.PAUSED, JobState.RUNNING])
def test_without_a_result_the_newest_checkpoint_is_served(
    client: TestClient, settings: Settings, database: Database, state: JobState
) -> None:
    job_id = add_job(database, state)
    add_checkpoint(settings, database, job_id, 20, b"twenty")
    add_checkpoint(settings, database, job_id, 40, b"forty")
    answer = adapter(client, job_id)
    assert (answer.content, answer.headers["x-step"]) == (b"forty", "40")


def test_the_best_evaluated_weights_can_be_downloaded(
    client: TestClient, settings: Settings, database: Database
) -> None:
    evaluation = {"best": {"step": 20, "reward": 0.9}}
    job_id = add_job(database, JobState.SUCCEEDED, evaluation=evaluation)
    add_artifact(settings, database, job_id, "adapter", CONTENT, step=40)
    assert refusal(adapter(client, job_id, which="best")) == (404, "no_best_checkpoint")
    add_checkpoint(settings, database, job_id, 20, b"twenty")
    assert adapter(client, job_id, which="best").content == b"twenty"
    assert adapter(client, job_id, which="final").content == CONTENT


@pytest.mark.parametrize("param", ["which", "checkpoint"])
def test_without_evaluation_there_is_no_best(client: TestClient, job_id: str, param: str) -> None:
    answer = adapter(client, job_id, **{param: "best"})
    assert refusal(answer) == (404, "no_best_checkpoint")
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"].endswith(f"Use {param}=final.")


def test_a_checkpoint_is_served_under_three_addresses(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    checkpoint = add_checkpoint(settings, database, job_id, 5, b"five")
    assert adapter(client, job_id, checkpoint=checkpoint).content == b"five"
    assert client.get(f"{JOBS}/{job_id}/checkpoints/{checkpoint}/content").content == b"five"
    assert client.get(f"/v1/fine_tuning/checkpoints/{checkpoint}/content").content == b"five"


def test_a_checkpoint_of_another_job_or_tenant_does_not_exist(
    client: TestClient, other_client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    other = add_job(database, JobState.SUCCEEDED)
    checkpoint = add_checkpoint(settings, database, other, 5, b"five")
    answer = adapter(client, job_id, checkpoint=checkpoint)
    assert refusal(answer) == (404, "checkpoint_not_found")
    assert answer.json()["error"]["param"] == "checkpoint"
    answer = other_client.get(f"/v1/fine_tuning/checkpoints/{checkpoint}/content")
    assert refusal(answer) == (404, "checkpoint_not_found")


def test_a_format_that_is_not_offered_is_named(client: TestClient, job_id: str) -> None:
    answer = adapter(client, job_id, format="gguf")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "format")


def test_lost_content_is_an_answer(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    checkpoint = add_checkpoint(settings, database, job_id, 5, b"five")
    with database.reading() as session:
        row = session.get(Checkpoint, checkpoint)
        assert row is not None
    open_storage(settings.storage_location).delete(row.adapter_key)
    assert refusal(adapter(client, job_id, checkpoint=checkpoint)) == (404, "content_missing")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a.tar.gz", "a.tar.gz"),
        ("../../etc/passwd", "passwd"),
        ('a"b\r\nc.txt', "a_b_c.txt"),
        ("é.csv", "_.csv"),
        ("...", "download"),
    ],
)
def test_a_file_name_cannot_break_out_of_its_header(name: str, plain: str) -> None:
    header = content_disposition(name)
    assert header.startswith(f'attachment; filename="{plain}"; ')
    assert "\r" not in header
    assert header.isascii()
