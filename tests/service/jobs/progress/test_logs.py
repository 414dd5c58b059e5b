"""`…/jobs/{id}/logs`: pages, the newest lines, the download, and whose they are."""

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.progress import logs
from service.jobs.progress.logs import PrintedLines
from service.platform.db import Database
from tests.service.job_samples import add_job

JOBS = "/v1/fine_tuning/jobs"
EXPORT = {"format": "merged", "step": 5, "base": "base", "sha256": "0" * 64}


def add_log(database: Database, *attempts: list[PrintedLines], tenant: str = "tenant-a") -> str:
    """A job that printed these lines in its attempts."""
    job_id, last = add_job(database, JobState.RUNNING, tenant=tenant), 0
    with database.transaction() as session:
        for attempt, printed in enumerate(attempts, 1):
            last = logs.append(session, job_id, attempt, printed, after=last)
    return job_id


def test_lines_are_in_order_page_by_page(client: TestClient, database: Database) -> None:
    job_id = add_log(
        database, [PrintedLines(0, ["a", ""]), PrintedLines(1, ["b"])], [PrintedLines(None, ["c"])]
    )
    first = client.get(f"{JOBS}/{job_id}/logs", params={"limit": 3}).json()
    second = client.get(f"{JOBS}/{job_id}/logs", params={"after": 3}).json()
    found = [(line["sequence"], line["attempt"], line["rank"], line["text"]) for line in first["data"]]
    assert found == [(1, 1, 0, "a"), (2, 1, 0, ""), (3, 1, 1, "b")]
    (last,) = second["data"]
    assert last.pop("created_at") > 1.7e9
    assert last == {"sequence": 4, "attempt": 2, "rank": None, "text": "c"}
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert client.get(f"{JOBS}/{job_id}/logs", params={"after": 4}).json()["data"] == []


def test_a_tail_starts_before_the_end(client: TestClient, database: Database) -> None:
    job_id = add_log(database, [PrintedLines(0, [str(n) for n in range(100_000)])])
    page = client.get(f"{JOBS}/{job_id}/logs", params={"tail": 2}).json()
    assert [line["text"] for line in page["data"]] == ["99998", "99999"]
    assert page["has_more"] is False


def test_the_download_has_all_lines_with_attempts_and_ranks(client: TestClient, database: Database) -> None:
    many = [str(n) for n in range(50_000)]
    job_id = add_log(database, [PrintedLines(0, many), PrintedLines(1, ["b"])], [PrintedLines(0, ["<c>"])])
    answer = client.get(f"{JOBS}/{job_id}/logs", params={"format": "text"})
    assert answer.text.splitlines() == [*many, "[rank 1] b", "--- attempt 2 ---", "<c>"]
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{job_id}.log"'


def test_a_download_of_blank_lines_is_complete_and_holds_few_of_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LINES_AT_ONCE", 1000)
    job_id = add_log(database, [PrintedLines(0, [""] * 100_000), PrintedLines(0, ["end"])])
    parts = list(logs.as_text(database, job_id))
    assert "".join(parts) == "\n" * 100_000 + "end\n"
    assert max(part.count("\n") for part in parts) == 1000


def test_another_tenant_s_log_is_not_found(client: TestClient, database: Database) -> None:
    job_id = add_log(database, [PrintedLines(0, ["a"])], tenant="tenant-b")
    for format_ in ("json", "text"):
        answer = client.get(f"{JOBS}/{job_id}/logs", params={"format": format_})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")


def test_the_logs_of_probes_and_exports_are_read_like_those_of_jobs(
    client: TestClient, other_client: TestClient, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    paths = {
        add_job(database, JobState.FAILED, probe={"prompts": 2}): "/v1/fine_tuning/probes/{}/logs",
        add_job(
            database, JobState.FAILED, export=EXPORT | {"job_id": job_id}
        ): f"{JOBS}/{job_id}/exports/{{}}/logs",
    }
    for row_id, path in paths.items():
        with database.transaction() as session:
            logs.append(session, row_id, 1, [PrintedLines(0, ["a", "b"])], after=0)
        page = client.get(path.format(row_id), params={"tail": 1}).json()
        assert [(line["sequence"], line["text"]) for line in page["data"]] == [(2, "b")]
        text = client.get(path.format(row_id), params={"format": "text"})
        assert (text.text, f'"{row_id}.log"' in text.headers["content-disposition"]) == ("a\nb\n", True)
        assert other_client.get(path.format(row_id)).status_code == 404
        assert client.get(f"{JOBS}/{row_id}/logs").status_code == 404
