"""`GET …/jobs/{id}/diagnosis` over stored rows, and its patch sent to `clone` unchanged."""

from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.jobs.store.history import HistoryEntry, append
from service.platform.db import Database
from service.platform.tables.core import Metric, Rollout
from service.settings import Settings
from tests.service.job_samples import add_job, make_model, upload
from tests.service.jobs.diagnosis.runs import metrics

JOBS = "/v1/fine_tuning/jobs"


def store(database: Database, job_id: str) -> None:
    """Sixty steps without signal, and two groups of them: one all wrong, one that could not be scored."""
    rows = metrics(reward=0.0, frac_reward_zero_std=0.97)
    wrong = [{"text": "5", "reward": 0.0, "token_ids": [1], "finish_reason": "stop"}] * 2
    error = {"exact": {"code": "invalid_variable_error", "message": "item has no field answer"}}
    unscored = [{"text": "", "reward": None, "errors": error, "token_ids": [1], "finish_reason": "stop"}]
    groups = {59: wrong, 60: unscored}
    with database.transaction() as session:
        for row in rows:
            values = {name: value for name, value in row.items() if name != "step"}
            session.add(Metric(job_id=job_id, step=row["step"], values=values))
        for step, completions in groups.items():
            data = {"row": 0, "prompt": "p", "completions": completions}
            place = {"job_id": job_id, "split": "train", "step": step, "position": 0}
            session.add(Rollout(**place, has_signal=False, data=data))


def test_a_failed_job_is_diagnosed_and_cloned_with_a_fix(
    client: TestClient, database: Database, settings: Settings
) -> None:
    make_model(settings.home)
    job_id = add_job(database, JobState.FAILED, training_file=upload(client), step=60, total_steps=60)
    store(database, job_id)
    found = client.get(f"{JOBS}/{job_id}/diagnosis").json()
    assert (found["status"], found["step"]) == ("failed", 60)
    first = found["findings"][0]
    assert first["code"] == "no_signal"
    assert (
        first["cause"]
        == "In almost every group no completion gets a reward: the model cannot do this task yet, or the "
        'grader rejects right answers (for example "5" for "p").'
    )
    assert first["evidence"][1] == (
        "steps 59–60: of 2 stored groups 1 had no signal "
        "(1 all wrong, 0 all right, 0 with equal partial rewards)"
    )
    again = client.post(f"{JOBS}/{job_id}/clone", json=first["patch"]).json()
    assert again["method"]["reinforcement"]["hyperparameters"]["group_size"] == first["suggested"] == 16


def test_errors_of_graders_are_counted_from_the_rollouts(client: TestClient, database: Database) -> None:
    failure = {"code": "grader_contract", "message": "m", "hint": "h", "evidence": []}
    job_id = add_job(database, JobState.FAILED, step=60, failure=failure)
    store(database, job_id)
    first = client.get(f"{JOBS}/{job_id}/diagnosis").json()["findings"][0]
    expected = "1 × invalid_variable_error, in step 60 of exact: item has no field answer"
    assert first["evidence"][1] == expected


def test_the_rows_of_the_training_file_are_counted(client: TestClient, database: Database) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, training_file=upload(client), step=60, total_steps=60)
    store(database, job_id)
    found = client.get(f"{JOBS}/{job_id}/diagnosis").json()["findings"]
    (few,) = (one for one in found if one["code"] == "few_training_rows")
    assert few["compared"][0] == {"label": "training rows", "value": 2.0, "step": None}


def test_the_warnings_of_a_guard_are_one_finding_and_all_stay_in_the_history(
    client: TestClient, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, step=60, total_steps=60)
    old = "In 97% of the groups … (limit 0.8) for 5 steps in a row, up to step 12. Such groups teach nothing."
    with database.transaction() as session:
        warnings = [(old, {}), ("again", {"step": 31}), ("and again", {"step": 47})]
        for message, data in warnings:
            entry = HistoryEntry("message", message, "warn", {"code": "guard_entropy", **data})
            append(session, job_id, entry)
    store(database, job_id)
    found = client.get(f"{JOBS}/{job_id}/diagnosis").json()["findings"]
    (guard,) = (one for one in found if one["code"] == "guard_entropy")
    assert guard["cause"] == "and again"
    assert (guard["severity"], guard["count"], guard["first_step"], guard["last_step"]) == ("info", 3, 12, 47)
    kept = client.get(f"{JOBS}/{job_id}/events").json()["data"]
    assert [event["message"] for event in kept].count("again") == 1
    assert len([event for event in kept if event["data"].get("code") == "guard_entropy"]) == 3


def test_another_tenants_job_is_not_there(
    client: TestClient, other_client: TestClient, database: Database
) -> None:
    job_id = add_job(database, JobState.FAILED)
    assert other_client.get(f"{JOBS}/{job_id}/diagnosis").status_code == 404
