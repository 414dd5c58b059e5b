"""The rows of a file are read once for many jobs with the same checks; all problems are counted."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from grpo_engine.config.job import Hyperparameters
from service.jobs.intake.checks import files
from service.jobs.intake.recent_results import RecentResults
from service.platform.storage import Storage, open_storage
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import GRADER, chat, create, jsonl, reinforcement, request, row, upload

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]  # nothing here depends on the database

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Storage keys of the files whose rows were read."""
    keys: list[str] = []
    original = Storage.stream

    def counted(storage: Storage, key: str) -> Iterator[bytes]:
        keys.append(key)
        return original(storage, key)

    monkeypatch.setattr(Storage, "stream", counted)
    return keys


def test_jobs_that_differ_in_seed_and_learning_rate_share_one_reading(
    client: TestClient, readings: list[str]
) -> None:
    file_id = upload(client)
    first = create(client, file_id, seed=1)
    second = create(client, file_id, seed=2, method=reinforcement(learning_rate=1e-4))
    assert readings == [f"files/{file_id}"]
    assert first["progress"]["total_steps"] == second["progress"]["total_steps"]
    assert first["warnings"] == second["warnings"]


def test_every_job_gets_the_warnings_about_the_rows(client: TestClient, readings: list[str]) -> None:
    file_id = upload(client, jsonl(row(), row()))
    jobs = [create(client, file_id, seed=seed) for seed in (1, 2)]
    assert len(readings) == 1
    assert [[warning["code"] for warning in job["warnings"]] for job in jobs] == [["duplicate_rows"]] * 2


SUPERVISED = {"type": "supervised", "supervised": {"hyperparameters": {"n_steps": 2}}}


@pytest.mark.parametrize("method", [reinforcement(), SUPERVISED], ids=["reinforcement", "supervised"])
def test_no_check_of_a_row_reads_a_hyperparameter_that_the_key_leaves_out(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, method: dict[str, Any]
) -> None:
    read: set[str] = set()
    check_rows = files.FileCheck.num_rows

    def watched(self: files.FileCheck, *arguments: Any) -> int:
        with monkeypatch.context() as during:

            def seen(hyperparameters: Any, name: str) -> Any:
                read.add(name)
                return object.__getattribute__(hyperparameters, name)

            during.setattr(Hyperparameters, "__getattribute__", seen)
            return check_rows(self, *arguments)

    monkeypatch.setattr(files.FileCheck, "num_rows", watched)
    turns = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    rows = row() if method["type"] == "reinforcement" else {"messages": turns}
    create(client, upload(client, jsonl(rows)), method=method)
    assert read & {"max_completion_tokens", "max_tokens"}, "the watch saw nothing"
    assert not read & files.UNUSED_BY_ROWS


def test_another_grader_or_limit_reads_the_rows_again(client: TestClient, readings: list[str]) -> None:
    file_id = upload(client)
    create(client, file_id)
    create(client, file_id, method=reinforcement(max_completion_tokens=8))
    create(client, file_id, method=reinforcement({**GRADER, "operation": "like"}))
    assert len(readings) == 3


def test_a_remembered_file_whose_content_is_gone_is_refused(
    client: TestClient, settings: Settings, readings: list[str]
) -> None:
    file_id = upload(client)
    create(client, file_id, seed=1)
    open_storage(settings.storage_location).delete(f"files/{file_id}")
    answer = client.post(JOBS, json=request(file_id, seed=2))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "file_not_found")


def test_a_faulty_file_is_read_and_refused_each_time(client: TestClient, readings: list[str]) -> None:
    file_id = upload(client, jsonl({"messages": []}))
    answers = [client.post(JOBS, json=request(file_id)) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].json()["error"]["problems"] == answers[1].json()["error"]["problems"]
    assert len(readings) == 2


def test_after_a_while_the_rows_are_read_again(app: FastAPI, client: TestClient, readings: list[str]) -> None:
    app.state.checked_files = RecentResults[files.CheckedRows](seconds=0.0, max_entries=1)
    file_id = upload(client)
    create(client, file_id, seed=1)
    create(client, file_id, seed=2)
    assert len(readings) == 2


def test_only_the_newest_results_are_kept() -> None:
    kept = RecentResults[str](seconds=60.0, max_entries=2)
    for key in ("a", "b", "a", "c"):
        kept.put(key, f"of {key}")
    assert [kept.get(key) for key in ("a", "b", "c")] == ["of a", None, "of c"]


def test_more_than_a_hundred_problems_are_all_counted(client: TestClient) -> None:
    body = request(upload(client, jsonl(*[{"messages": row()["messages"]}] * 780)))
    error = client.post(JOBS, json=body).json()["error"]
    assert error["message"].startswith("780 problems: training_file[1].answer: ")
    assert error["message"].endswith("(and 779 more like it)")
    assert (len(error["problems"]), error["problems"][0]["alike"]) == (100, 780)
    checked = client.post(f"{JOBS}/validate", json=body).json()
    assert (checked["num_problems"], len(checked["problems"])) == (780, 100)
    assert checked["problems"][99]["alike"] == 780


def test_assistant_turns_that_are_not_learned_cause_a_warning(client: TestClient) -> None:
    question, answer = chat("four", "one")["messages"]
    said = [[question, each, question, answer] for each in (answer, answer | {"weight": 0})]
    file_id = upload(client, jsonl(*({"messages": messages} for messages in said), chat("two", "one")))
    warnings = create(client, file_id, method=SUPERVISED)["warnings"]
    found = [each for each in warnings if each["code"] == "earlier_turns_not_learned"]
    assert [each["message"] for each in found] == [
        "training_file: 1 of 3 rows have assistant turns before the last one. Only the last one is learned; "
        "add a row that ends with each turn to learn it as well, or give it the weight 0."
    ]
    asked = [[question, answer, question], [question]]
    rows = jsonl(*({"messages": messages, "answer": "4"} for messages in asked))
    assert create(client, upload(client, rows))["warnings"] == []
