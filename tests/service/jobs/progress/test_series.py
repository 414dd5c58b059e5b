"""Events, checkpoints and metrics: order, pages, exports."""

import csv
import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai.types.fine_tuning import FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from service.jobs.model.states import JobState
from service.jobs.progress.metrics import thinned
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.db import Database
from service.platform.tables.core import Metric
from service.settings import Settings
from tests.service.job_samples import add_checkpoint, add_job

JOBS = "/v1/fine_tuning/jobs"


def get(client: TestClient, path: str, **params: Any) -> dict[str, Any]:
    answer = client.get(f"{JOBS}/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_events_are_newest_first_page_by_page(client: TestClient, database: Database, job_id: str) -> None:
    entries = [HistoryEntry("message", f"m{n}") for n in range(4)]
    with database.transaction() as session:
        status = history.status(JobState.RUNNING, "started", phase="preparing", fence=1)
        history.append(session, job_id, *entries, status, HistoryEntry("metrics", "step", data={"step": 1}))
    first = get(client, f"{job_id}/events", limit=4)
    second = get(client, f"{job_id}/events", limit=4, after=first["last_id"])
    events = first["data"] + second["data"]
    assert [event["message"] for event in events] == ["step", "started", "m3", "m2", "m1", "m0"]
    assert [event["type"] for event in events] == ["metrics"] + ["message"] * 5
    assert events[0]["data"] == {"step": 1}
    assert len({event["id"] for event in events}) == 6
    assert (first["has_more"], second["has_more"]) == (True, False)
    for event in events:
        FineTuningJobEvent.model_validate(event)


def test_an_events_cursor_of_another_job_is_refused(
    client: TestClient, database: Database, job_id: str
) -> None:
    other = add_job(database, JobState.RUNNING)
    with database.transaction() as session:
        history.append(session, other, HistoryEntry("message", "m"))
    cursor = get(client, f"{other}/events")["last_id"]
    answer = client.get(f"{JOBS}/{job_id}/events", params={"after": cursor})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after")


def test_checkpoints_are_newest_first(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    ids = [add_checkpoint(settings, database, job_id, step, b"w") for step in (20, 40, 60)]
    first = get(client, f"{job_id}/checkpoints", limit=2)
    second = get(client, f"{job_id}/checkpoints", limit=2, after=first["last_id"])
    found = first["data"] + second["data"]
    assert [point["id"] for point in found] == ids[::-1]
    assert [point["step_number"] for point in found] == [60, 40, 20]
    assert found[0]["metrics"] == {"step": 60, "train_mean_reward": 6.0}
    short = job_id.removeprefix("ftjob-")
    assert found[0]["fine_tuned_model_checkpoint"] == f"ft:tiny:tenant-a::{short}:ckpt-step-60"
    for point in found:
        FineTuningJobCheckpoint.model_validate(point)


@pytest.fixture
def measured(database: Database, job_id: str) -> str:
    """A job with ten steps of metrics."""
    with database.transaction() as session:
        for step in range(1, 11):
            values = {"reward": step / 10, "kl": 0.01} | ({"only_once": 1.0} if step == 5 else {})
            session.add(Metric(job_id=job_id, step=step, values=values))
    return job_id


def test_metrics_are_flat_rows(client: TestClient, measured: str) -> None:
    page = get(client, f"{measured}/metrics")
    assert page["object"] == "list"
    assert page["has_more"] is False
    assert page["data"][0] == {"step": 1, "reward": 0.1, "kl": 0.01}
    assert [row["step"] for row in page["data"]] == list(range(1, 11))


def test_metrics_go_on_after_a_step(client: TestClient, measured: str) -> None:
    page = get(client, f"{measured}/metrics", after_step=3, limit=2, names="kl,absent")
    assert page == {
        "object": "list",
        "data": [{"step": 4, "kl": 0.01}, {"step": 5, "kl": 0.01}],
        "has_more": True,
    }


def test_metrics_end_before_a_step(client: TestClient, measured: str) -> None:
    page = get(client, f"{measured}/metrics", after_step=3, before_step=6)
    assert ([row["step"] for row in page["data"]], page["has_more"]) == ([4, 5], False)


def test_names_that_are_given_but_empty_are_refused(client: TestClient, measured: str) -> None:
    for path in ("metrics", "metrics.csv"):
        answer = client.get(f"{JOBS}/{measured}/{path}", params={"names": ","})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "names[0]")


def test_evaluations_are_columns_that_may_be_empty(
    client: TestClient, database: Database, job_id: str
) -> None:
    with database.transaction() as session:
        for step, values in enumerate([{"eval/reward": 0.1}, {"kl": 0.5}, {"kl": 0.6, "eval/reward": 0.2}]):
            session.add(Metric(job_id=job_id, step=step, values=values))
    text = client.get(f"{JOBS}/{job_id}/metrics.csv").text
    assert text == "step,eval/reward,kl\n0,0.1,\n1,,0.5\n2,0.2,0.6\n"


@pytest.mark.parametrize("path", ["events", "checkpoints", "rollouts"])
def test_an_empty_cursor_is_refused(client: TestClient, job_id: str, path: str) -> None:
    answer = client.get(f"{JOBS}/{job_id}/{path}", params={"after": ""})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after")


def test_metrics_are_thinned_evenly(client: TestClient, measured: str) -> None:
    page = get(client, f"{measured}/metrics", max_points=4)
    assert [row["step"] for row in page["data"]] == [1, 4, 7, 10]
    assert [row["step"] for row in get(client, f"{measured}/metrics", max_points=50)["data"]] == list(
        range(1, 11)
    )
    some = get(client, f"{measured}/metrics", max_points=50, after_step=3, before_step=6)
    assert [row["step"] for row in some["data"]] == [4, 5]


def test_thinned_metrics_keep_the_evaluations(client: TestClient, database: Database, job_id: str) -> None:
    with database.transaction() as session:
        for step in range(1, 101):
            values = {"reward": 0.5} | ({"eval/reward": step / 100} if step % 30 == 0 else {})
            session.add(Metric(job_id=job_id, step=step, values=values))
    rows = get(client, f"{job_id}/metrics", max_points=10)["data"]
    assert [row["step"] for row in rows] == [1, 17, 30, 34, 51, 60, 67, 83, 90, 100]
    assert [row["eval/reward"] for row in rows if "eval/reward" in row] == [0.3, 0.6, 0.9]


@pytest.mark.parametrize(("num", "max_points"), [(10_000, 200), (3, 2), (2, 2), (0, 5), (201, 200)])
def test_thinning_keeps_the_ends(num: int, max_points: int) -> None:
    kept = thinned(range(num), max_points)
    assert len(kept) == min(num, max_points)
    assert kept == sorted(set(kept))
    assert kept[:1] + kept[-1:] == ([0, num - 1] if num else [])


def test_the_csv_has_step_first(client: TestClient, measured: str) -> None:
    answer = client.get(f"{JOBS}/{measured}/metrics.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.text.splitlines()[0] == "step,kl,only_once,reward"
    assert rows[4] == {"step": "5", "kl": "0.01", "only_once": "1.0", "reward": "0.5"}
    assert rows[0]["only_once"] == ""


@pytest.mark.parametrize(
    ("path", "name"),
    [("rollouts", "step"), ("rollouts.jsonl", "step"), ("metrics", "after_step"), ("stream", "after")],
)
def test_a_number_that_no_database_holds_is_refused(
    client: TestClient, job_id: str, path: str, name: str
) -> None:
    answer = client.get(f"{JOBS}/{job_id}/{path}", params={name: 2**64})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
