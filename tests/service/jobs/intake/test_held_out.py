"""Held-out rows: retention sets as files of a job, rows that training sees too, fields that need them."""

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.intake.checks.duplicates import DuplicateCheck
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Row
from service.jobs.model.methods import parsed_method
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import refusal
from tests.service.job_samples import (
    CONTEXT_TOKENS,
    GRADER,
    METHOD,
    add_job,
    chat,
    create,
    expanded,
    jsonl,
    num_jobs,
    reinforcement,
    request,
    row,
    store_file,
    upload,
)

pytestmark = pytest.mark.usefixtures("model")

CAPITALS = row("What is the capital of France?", "Paris")


def with_sets(*sets: dict[str, Any], **more: Any) -> dict[str, Any]:
    method = reinforcement(**more)
    method["reinforcement"]["retention"] = list(sets)
    return method


def validated(client: TestClient, **more: Any) -> dict[str, Any]:
    body = request(more.pop("training_file", None) or upload(client), **more)
    answer = client.post("/v1/fine_tuning/jobs/validate", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def problems(report: dict[str, Any]) -> list[str]:
    return [problem["param"] for problem in report["problems"]]


def warnings(report: dict[str, Any]) -> dict[str, str]:
    return {warning["code"]: warning["message"] for warning in report["warnings"]}


@on_sqlite
def test_a_job_keeps_its_retention_sets(client: TestClient) -> None:
    kept = upload(client, jsonl(CAPITALS))
    job = create(client, upload(client), method=with_sets({"name": "capitals", "file": kept}))
    assert job["method"]["reinforcement"]["retention"] == [{"name": "capitals", "file": kept, "grader": None}]
    assert job["progress"]["total_steps"] == 1


@on_sqlite
def test_retention_rows_are_checked_with_the_sets_own_grader(client: TestClient) -> None:
    grader = {**GRADER, "reference": "{{item.capital}}"}
    plain, own = upload(client, jsonl(CAPITALS)), upload(client, jsonl({**CAPITALS, "capital": "Paris"}))
    sets = [{"name": "a", "file": own, "grader": grader}, {"name": "b", "file": plain, "grader": grader}]
    report = validated(client, method=with_sets(*sets))
    assert problems(report) == ["method.reinforcement.retention[1].file[1].capital"]


@on_sqlite
def test_what_is_wrong_with_a_retention_file_names_the_set(client: TestClient) -> None:
    words = "word " * (CONTEXT_TOKENS - 16)
    long = upload(client, jsonl(CAPITALS, row(words)))
    shapeless = upload(client, b'{"messages": 1}\n')
    sets = [{"name": name, "file": file} for name, file in (("a", long), ("b", shapeless), ("c", "file-x"))]
    report = validated(client, method=with_sets(*sets))
    place = "method.reinforcement.retention"
    assert problems(report) == [
        f"{place}[0].file[2].messages",
        f"{place}[1].file[1].messages",
        f"{place}[2].file",
    ]
    assert "more than the model's context of 64" in report["problems"][0]["message"]


@on_sqlite
def test_a_refused_retention_file_has_a_code_of_its_own(
    client: TestClient, settings: Settings, database: Database
) -> None:
    foreign = store_file(settings, database, jsonl(CAPITALS), tenant="tenant-b")
    shapeless = upload(client, b'{"a": 1}\n')
    for file_id, code in ((foreign, "file_not_found"), (shapeless, "invalid_retention_file")):
        method = with_sets({"name": "a", "file": file_id})
        answer = client.post("/v1/fine_tuning/jobs", json=request(upload(client), method=method))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert error["param"].startswith("method.reinforcement.retention[0].file")
    assert num_jobs(database) == 0


def test_a_retention_file_stays_while_its_job_is_unfinished(client: TestClient) -> None:
    kept = upload(client, jsonl(CAPITALS))
    job = create(client, upload(client), method=with_sets({"name": "capitals", "file": kept}))
    answer = client.delete(f"/v1/files/{kept}")
    assert refusal(answer) == (400, "file_id", "file_in_use")
    assert job["id"] in answer.json()["error"]["message"]
    client.post(f"/v1/fine_tuning/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/files/{kept}").status_code == 200


@on_sqlite
def test_repeated_and_leaked_rows_are_reported_with_numbers(client: TestClient) -> None:
    training = upload(client, jsonl(row(), CAPITALS, row(answer="5"), row()))
    held_out = upload(client, jsonl(row("new"), CAPITALS))
    kept = upload(client, jsonl(row()))
    report = validated(
        client,
        training_file=training,
        validation_file=held_out,
        method=with_sets({"name": "a", "file": kept}),
    )
    assert report["valid"] is True
    reported = warnings(report)
    assert reported["duplicate_rows"] == (
        "training_file: 2 of 4 rows repeat the prompt of an earlier one: row 3 repeats training row 1, "
        "row 4 repeats training row 1. Repeated prompts weigh more."
    )
    repeated = "rows have the prompt of a training row: row {} repeats training row {}."
    leak = f"{repeated} Improvement on them may be memorisation."
    assert reported["validation_leak"] == f"validation_file: 1 of 2 {leak.format(2, 2)}"
    place = "method.reinforcement.retention[0].file"
    assert reported["retention_leak"] == f"{place}: 1 of 1 {leak.format(1, 1)}"
    assert len(reported) == 3


@on_sqlite
def test_only_the_first_repeated_rows_are_listed(client: TestClient) -> None:
    report = validated(client, training_file=upload(client, jsonl(*[row()] * 9)))
    assert "8 of 9 rows" in warnings(report)["duplicate_rows"]
    assert "row 6 repeats training row 1 and 3 more." in warnings(report)["duplicate_rows"]


@on_sqlite
def test_repeated_prompts_of_demonstrations_count_whatever_their_answers(client: TestClient) -> None:
    rows = [chat(f"Sort {n % 4}", f"reply {n % 8 // 4}") for n in range(20)]
    held_out = [chat("Sort 1", "another reply"), chat("Sort 9", "reply 0")]
    method = {"type": "supervised", "supervised": {"hyperparameters": {}}}
    files = {
        "training_file": upload(client, jsonl(*rows)),
        "validation_file": upload(client, jsonl(*held_out)),
    }
    found = warnings(validated(client, method=method, **files))
    start = "training_file: 16 of 20 rows repeat the prompt of an earlier one (12 with the same answer): "
    assert found["duplicate_rows"].startswith(f"{start}row 5 repeats training row 1")
    start = "validation_file: 1 of 2 rows have the prompt of a training row (0 with the same answer): "
    assert found["validation_leak"].startswith(f"{start}row 1 repeats training row 2.")


@on_sqlite
def test_another_conversation_or_other_tools_are_not_a_repetition(client: TestClient) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    rows = [row(), row("What is 2+2 ?"), row(tools=[tool]), {"prompt": "What is 2+2?", "answer": "4"}]
    assert "duplicate_rows" not in warnings(validated(client, training_file=upload(client, jsonl(*rows))))


def test_fifty_thousand_rows_are_compared_in_less_than_two_seconds() -> None:
    report = Report(parsed_method({"type": "supervised", "supervised": {}}))
    check = DuplicateCheck(report)
    messages = [({"role": "user", "content": f"What is {n}+{n}?"},) for n in range(50_000)]
    rows = [Row(n, each, None, None, (), {}) for n, each in enumerate(messages, 1)]
    started = time.process_time()
    assert sum(1 for _ in check.watch(rows, "training_file")) == 50_000
    assert report.warnings == []
    assert time.process_time() - started < 2
    assert sum(1 for _ in check.watch(rows[:10], "validation_file")) == 10
    (found,) = report.warnings
    assert found["code"] == "validation_leak"
    assert "10 of 10 rows have the prompt of a training row" in found["message"]


@on_sqlite
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"early_stopping": {"patience": 2}}, "hyperparameters.early_stopping"),
        ({}, "eval_grader"),
    ],
)
def test_fields_that_need_held_out_rows_are_refused_without(
    client: TestClient, more: dict[str, Any], param: str
) -> None:
    method = reinforcement(**more)
    if param == "eval_grader":
        method["reinforcement"]["eval_grader"] = GRADER
    report = validated(client, method=method)
    assert problems(report) == [f"method.reinforcement.{param}"]
    assert "needs a validation_file" in report["problems"][0]["message"]
    held_out = upload(client, jsonl(CAPITALS))
    assert validated(client, method=method, validation_file=held_out)["valid"] is True


@on_sqlite
def test_validation_rows_are_checked_with_the_grader_that_scores_them(client: TestClient) -> None:
    method = reinforcement()
    method["reinforcement"]["eval_grader"] = {**GRADER, "reference": "{{item.other}}"}
    held_out = upload(client, jsonl({"messages": CAPITALS["messages"], "other": "Paris"}))
    assert validated(client, method=method, validation_file=held_out)["valid"] is True
    report = validated(client, method=method, validation_file=upload(client, jsonl(CAPITALS)))
    assert problems(report) == ["validation_file[1].other"]


@on_sqlite
def test_jobs_of_before_these_fields_are_still_answered(client: TestClient, database: Database) -> None:
    method = expanded()
    for name in ("eval_grader", "retention", "tools"):
        del method["reinforcement"][name]
    hyperparameters = method["reinforcement"]["hyperparameters"]
    for name in ("early_stopping", "num_iterations", "self_distillation", "stop", "max_turns", "curriculum"):
        del hyperparameters[name]
    job_id = add_job(database, JobState.SUCCEEDED, method=method, fine_tuned_model="ft:tiny:tenant-a::old")
    assert client.get(f"/v1/fine_tuning/jobs/{job_id}").json()["method"] == method
    assert METHOD.validate_python(method).reinforcement.retention == ()


@on_sqlite
@pytest.mark.parametrize(
    ("num_rows", "split", "is_warned"), [(39, None, False), (40, None, True), (40, 0.1, False)]
)
def test_a_file_with_enough_rows_and_none_held_out_causes_a_warning(
    client: TestClient, num_rows: int, split: float | None, is_warned: bool
) -> None:
    rows = jsonl(*(row(f"What is {n} + {n}?", str(2 * n)) for n in range(num_rows)))
    report = validated(client, training_file=upload(client, rows), validation_split=split)
    assert (report["valid"], "no_held_out_rows" in warnings(report)) == (True, is_warned)
