"""The evaluations in a job's response, and the download of its best weights."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.progress.metrics import add_metrics
from service.platform.db import Database
from service.platform.tables.core import Rollout
from service.settings import Settings
from tests.service.job_samples import add_artifact, add_checkpoint, add_job, expanded

JOBS = "/v1/fine_tuning/jobs"
VERDICT = {
    "text": "+0.400 (95% CI 0.300 to 0.500)",
    "difference": 0.4,
    "low": 0.3,
    "high": 0.5,
    "rows": 64,
}
EVALUATION: dict[str, Any] = {
    "baseline": {"step": 0, "reward": 0.1, "num_rows": 64.0},
    "best": {"step": 5, "reward": 0.6, "num_rows": 64.0},
    "last": {"step": 10, "reward": 0.5, "num_rows": 64.0},
    "verdict": VERDICT,
    "retention": {
        "general": {
            "last": {"step": 10, "reward": 0.8, "num_rows": 9.0},
            "verdict": {**VERDICT, "text": "kept: …"},
        }
    },
}


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """A succeeded job that was best at step 5 of 10."""
    job_id = add_job(database, JobState.SUCCEEDED, evaluation=EVALUATION)
    add_artifact(settings, database, job_id, "adapter", b"final")
    return job_id


def download(client: TestClient, job_id: str, checkpoint: str) -> Any:
    return client.get(f"{JOBS}/{job_id}/adapter", params={"checkpoint": checkpoint})


def test_the_answer_names_verdict_retention_and_the_best_checkpoint(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    five = add_checkpoint(settings, database, job_id, 5, b"five")
    add_checkpoint(settings, database, job_id, 10, b"ten")
    found = client.get(f"{JOBS}/{job_id}").json()["eval"]
    assert {name: found[name]["reward"] for name in ("baseline", "best", "last")} == {
        "baseline": 0.1,
        "best": 0.6,
        "last": 0.5,
    }
    assert found["best"]["checkpoint"] == five
    assert (found["verdict"], found["retention"]["general"]["verdict"]["text"]) == (VERDICT, "kept: …")
    (listed,) = client.get(JOBS).json()["data"]
    assert listed["eval"] == found


def test_every_evaluation_names_its_rows_and_that_it_is_greedy(client: TestClient, job_id: str) -> None:
    found = client.get(f"{JOBS}/{job_id}").json()["eval"]
    measured = [
        *(found[name] for name in ("baseline", "best", "last")),
        found["retention"]["general"]["last"],
    ]
    assert [(one["temperature"], one["rows"]) for one in measured] == [(0.0, 64)] * 3 + [(0.0, 9)]


def test_evaluations_of_a_job_older_than_the_setting_have_no_temperature(
    client: TestClient, database: Database
) -> None:
    method = expanded()
    del method["reinforcement"]["hyperparameters"]["eval_temperature"]
    old = add_job(database, JobState.SUCCEEDED, evaluation=EVALUATION, method=method)
    assert client.get(f"{JOBS}/{old}").json()["eval"]["last"]["temperature"] is None


def test_a_best_step_without_a_checkpoint_names_none(client: TestClient, job_id: str) -> None:
    assert client.get(f"{JOBS}/{job_id}").json()["eval"]["best"]["checkpoint"] is None


def test_a_job_without_evaluations_has_no_verdict(client: TestClient, database: Database) -> None:
    job_id = add_job(database, JobState.QUEUED)
    assert client.get(f"{JOBS}/{job_id}").json()["eval"] == dict.fromkeys(("baseline", "best", "last"))


def test_the_best_checkpoint_is_marked_in_the_list(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    for step in (5, 10):
        add_checkpoint(settings, database, job_id, step, b"x")
    points = client.get(f"{JOBS}/{job_id}/checkpoints").json()["data"]
    assert [(point["step_number"], point["is_best"]) for point in points] == [(10, False), (5, True)]


def test_a_checkpoint_shows_the_metrics_of_its_policy_on_the_held_out_rows(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    measured = [(5, {"reward": 0.7}), (5, {"eval/reward": 0.6, "eval/general/reward": 0.8})]
    with database.transaction() as session:
        add_metrics(session, job_id, measured)
    for step in (5, 10):
        add_checkpoint(settings, database, job_id, step, b"x")
    answer = client.get(f"{JOBS}/{job_id}/checkpoints").json()
    last, evaluated = (point["metrics"] for point in answer["data"])
    assert "eval/reward" not in last
    shown = {name: value for name, value in evaluated.items() if name not in last}
    assert shown == {"eval/reward": 0.6, "full_valid_mean_reward": 0.6}


def test_the_best_and_the_final_adapter_are_downloaded_by_word(
    client: TestClient, settings: Settings, database: Database, job_id: str
) -> None:
    add_checkpoint(settings, database, job_id, 5, b"five")
    best = download(client, job_id, "best")
    assert (best.content, best.headers["x-step"]) == (b"five", "5")
    assert download(client, job_id, "final").content == b"final"


def test_without_improvement_the_error_explains_the_missing_best_adapter(
    client: TestClient, settings: Settings, database: Database
) -> None:
    evaluation = {**EVALUATION, "best": {"step": 0, "reward": 0.9}}
    job_id = add_job(database, JobState.SUCCEEDED, evaluation=evaluation)
    add_artifact(settings, database, job_id, "adapter", b"final")
    answer = download(client, job_id, "best")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_best_checkpoint")
    assert "was best before training" in answer.json()["error"]["message"]


def test_rollouts_of_retention_sets_are_listed_with_their_set(
    client: TestClient, database: Database, job_id: str
) -> None:
    data = {"row": 0, "prompt": "p", "completions": [], "has_signal": False}
    with database.transaction() as session:
        for position, name in enumerate(("general", "other")):
            place = {"job_id": job_id, "split": "retention", "step": 5, "position": position}
            session.add(Rollout(**place, has_signal=False, data={**data, "set": name}))
    url = f"{JOBS}/{job_id}/rollouts"
    page = client.get(url, params={"split": "retention", "limit": 1}).json()
    assert [group["set"] for group in page["data"]] == ["general"]
    after = {"split": "retention", "after": page["data"][0]["id"]}
    assert [group["set"] for group in client.get(url, params=after).json()["data"]] == ["other"]
