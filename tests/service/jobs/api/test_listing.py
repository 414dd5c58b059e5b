"""The list of jobs: each filter, and pages that are exact in each order."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.tables.core import Metric
from tests.service.job_samples import add_job, create, upload

JOBS = "/v1/fine_tuning/jobs"


def verdict(difference: float) -> dict[str, Any]:
    return {"verdict": {"difference": difference, "low": difference - 0.1, "high": difference + 0.1}}


@pytest.fixture
def ids(database: Database) -> dict[str, str]:
    """Jobs by their short names, oldest first."""
    return {
        "a": add_job(database, JobState.SUCCEEDED, name="Zebra", evaluation=verdict(0.25), created_at=1),
        "b": add_job(database, JobState.FAILED, suffix="maths-1", tags=["maths", "x"], created_at=2),
        "c": add_job(database, JobState.PAUSING, model="other/model", evaluation=verdict(-0.5), created_at=3),
        "d": add_job(database, JobState.SUCCEEDED, name="apple 100%", archived=True, created_at=4),
        "e": add_job(database, JobState.CANCELLED, name="Zebra", tags=["maths"], created_at=5),
    }


def listed(client: TestClient, ids: dict[str, str], **query: Any) -> str:
    """The short names on all pages of two."""
    short = {job_id: name for name, job_id in ids.items()}
    found, after = "", None
    while True:
        page = client.get(
            JOBS, params={"limit": 2, "after": after, **query} if after else {"limit": 2, **query}
        )
        assert page.status_code == 200, page.text
        found += "".join(short[job["id"]] for job in page.json()["data"])
        if not page.json()["has_more"]:
            return found
        after = page.json()["last_id"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "edcba"),
        ({"status": "running"}, "c"),
        ({"status": "succeeded"}, "da"),
        ({"model": "other/model"}, "c"),
        ({"tag": "maths"}, "eb"),
        ({"tag": "math"}, ""),
        ({"q": "zebRA"}, "ea"),
        ({"q": "MATHS-"}, "b"),
        ({"q": "%"}, "d"),
        ({"q": "her/mo"}, "c"),
        ({"archived": "true"}, "d"),
        ({"archived": "false"}, "ecba"),
        ({"tag": "maths", "status": "failed"}, "b"),
    ],
)
def test_a_filter_selects_jobs(
    client: TestClient, ids: dict[str, str], query: dict[str, str], expected: str
) -> None:
    assert listed(client, ids, **query) == expected


def test_a_part_of_the_id_finds_a_job(client: TestClient, ids: dict[str, str]) -> None:
    assert listed(client, ids, q=ids["b"][6:]) == "b"


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("created", "abcde"),
        ("status", "ebcda"),  # cancelled, failed, pausing, succeeded
        ("-held_out", "acedb"),  # without a result last
        ("held_out", "caedb"),
    ],
)
def test_pages_are_exact_in_each_order(
    client: TestClient, ids: dict[str, str], sort: str, expected: str
) -> None:
    assert listed(client, ids, sort=sort) == expected


def test_names_are_sorted_in_any_case_and_equal_ones_newest_first(
    client: TestClient, ids: dict[str, str]
) -> None:
    found = listed(client, ids, sort="name")
    assert [one for one in found if one in "adeb"] == ["d", "b", "e", "a"]
    assert listed(client, ids, sort="-name", q="zebra") == "ea"


def test_a_cursor_that_no_longer_meets_the_filter_still_leads_on(
    client: TestClient, ids: dict[str, str]
) -> None:
    client.patch(f"{JOBS}/{ids['e']}", json={"tags": []})
    page = client.get(JOBS, params={"tag": "maths", "after": ids["e"]}).json()
    assert [job["id"] for job in page["data"]] == [ids["b"]]


@pytest.mark.parametrize("sort", ["-created", "created"])
def test_a_client_may_delete_the_jobs_of_a_page_before_it_reads_the_next_one(
    client: TestClient, other_client: TestClient, model: Path, sort: str
) -> None:
    file_id, query = upload(client), {"limit": 2, "sort": sort}
    ids = [create(client, file_id)["id"] for _ in range(5)]
    found: list[str] = []
    has_more = True
    while has_more:
        page = client.get(JOBS, params={**query, "after": found[-1]} if found else query).json()
        has_more = page["has_more"]
        for job_id in [job["id"] for job in page["data"]]:
            client.post(f"{JOBS}/{job_id}/cancel")
            assert client.delete(f"{JOBS}/{job_id}").status_code == 200
            found.append(job_id)
    assert found == (ids if sort == "created" else ids[::-1])
    assert other_client.get(JOBS, params={"after": ids[0]}).status_code == 404


def test_another_tenants_job_is_not_a_cursor(other_client: TestClient, ids: dict[str, str]) -> None:
    assert other_client.get(JOBS, params={"after": ids["e"]}).status_code == 404
    assert other_client.get(JOBS, params={"q": "zebra"}).json()["data"] == []


@pytest.mark.parametrize("query", [{"sort": "seed"}, {"status": "done"}, {"archived": "maybe"}])
def test_an_unknown_value_names_the_parameter(client: TestClient, query: dict[str, str]) -> None:
    answer = client.get(JOBS, params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))


@pytest.mark.parametrize(
    ("columns", "reward", "part"),
    [
        ({}, 0.0, "reward of 0"),
        ({}, 0.4, None),
        ({"evaluation": {"best": {"step": 0, "reward": 0.2}}}, 0.0, None),
        ({"evaluation": {"verdict": {"difference": -0.2, "low": -0.3, "high": -0.1}}}, 0.4, "worse"),
        ({"warnings": [{"code": "guard_no_signal", "message": "No group has signal."}]}, 0.4, "No group"),
        ({"warnings": [{"code": "few_rows", "message": "Few rows."}]}, 0.4, None),
    ],
)
def test_a_succeeded_job_says_why_it_needs_a_look(
    client: TestClient, database: Database, columns: dict[str, Any], reward: float, part: str | None
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, step=3, **columns)
    with database.transaction() as session:
        session.add(Metric(job_id=job_id, step=3, values={"reward": reward}))
    (job,) = client.get(JOBS).json()["data"]
    assert job["reward"] == reward
    assert (part in job["attention"]) if part else job["attention"] is None


def test_jobs_that_stop_are_sorted_among_the_running_ones(client: TestClient, database: Database) -> None:
    states = (JobState.RUNNING, JobState.CANCELLING, JobState.PAUSING, JobState.QUEUED, JobState.CANCELLED)
    ids = {
        name: add_job(database, state, created_at=n)
        for n, (name, state) in enumerate(zip("abcde", states, strict=True))
    }
    assert listed(client, ids, sort="status") == "edcba"
    assert listed(client, ids, sort="-status") == "cbade"


def test_jobs_without_labels_include_those_with_an_empty_object(
    client: TestClient, database: Database
) -> None:
    without = {add_job(database, JobState.QUEUED, labels=labels) for labels in (None, {})}
    add_job(database, JobState.QUEUED, labels={"team": "a"})
    found = client.get(JOBS, params={"metadata": "null"}).json()["data"]
    assert {job["id"] for job in found} == without


def test_a_label_may_contain_a_line_break(client: TestClient, database: Database) -> None:
    job_id = add_job(database, JobState.QUEUED, labels={"a\nb": "x"})
    assert [job["id"] for job in client.get(JOBS, params={"metadata[a\nb]": "x"}).json()["data"]] == [job_id]
