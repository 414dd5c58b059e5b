"""The grader's trial at submit, for rules that run in a process or call a server."""

import threading
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from grpo_engine.graders.pool import executors
from service.jobs.intake.checks import grader_trial
from tests.conftest import on_sqlite
from tests.service.job_samples import jsonl, reinforcement, request, row, upload
from tests.support.chat_server import EndpointServer

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]
TESTS = [{"call": "f", "args": [1], "expected": 1}]


def warned(client: TestClient, grader: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    """Code and message of each warning about a job that is accepted."""
    rows = jsonl(row(**more), row("What is 3+3?", "6", **more))
    body = request(upload(client, rows), method=reinforcement(grader))
    report = client.post("/v1/fine_tuning/jobs/validate", json=body).json()
    assert report["problems"] == []
    return [(warning["code"], warning["message"]) for warning in report["warnings"]]


def python(body: str) -> dict[str, Any]:
    return {"type": "python", "source": f"def grade(sample, item):\n    {body}"}


def test_graders_that_distinguish_answers_cause_no_warning(client: TestClient) -> None:
    assert warned(client, python("return float(item['answer'] in sample['output_text'])")) == []
    assert warned(client, {"type": "math", "reference": "{{item.answer}}"}) == []
    similar = {"type": "text_similarity", "evaluation_metric": "fuzzy_match", "reference": "{{item.answer}}"}
    assert warned(client, {**similar, "input": "{{sample.output_text}}"}) == []
    inner = {"type": "numeric", "reference": "{{item.answer}}"}
    assert warned(client, {"type": "process", "grader": inner}) == []


def test_code_tests_without_a_right_answer_cause_no_warning(client: TestClient) -> None:
    assert warned(client, {"type": "code_tests", "tests": "{{item.tests}}"}, tests=TESTS) == []


@pytest.mark.parametrize("field", ["output_json.verdict", "output_tools[0].function.name"])
def test_a_grader_of_fields_that_made_up_completions_lack_causes_no_warning(
    client: TestClient, field: str
) -> None:
    same = {"type": "string_check", "operation": "eq", "reference": "{{item.answer}}"}
    assert warned(client, {**same, "input": f"{{{{sample.{field}}}}}"}) == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return item['absent']", "KeyError: 'absent'"),
        ("return 'good'", "grade() must return a number"),
        ("import numpy\n    return 1.0", "ModuleNotFoundError: No module named 'numpy'"),
        ("return scored(sample)", "NameError: name 'scored' is not defined"),
    ],
)
def test_a_python_grader_that_can_never_score_is_refused(client: TestClient, body: str, why: str) -> None:
    body = request(upload(client, jsonl(row(), row())), method=reinforcement(python(body)))
    (problem,) = client.post("/v1/fine_tuning/jobs/validate", json=body).json()["problems"]
    assert problem["param"] == "method.reinforcement.grader"
    assert why in problem["message"]


def test_a_grader_is_not_tried_while_too_many_trials_run(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader_trial, "_slots", threading.BoundedSemaphore(1))
    monkeypatch.setattr(grader_trial, "SLOT_SECONDS", 0.01)
    with grader_trial._slots:
        assert warned(client, python("return 1.0")) == []
    ((code, _),) = warned(client, python("return 1.0  # not kept from before"))
    assert code == "grader_constant"


def test_the_warning_about_a_grader_that_always_raises_has_its_error(
    client: TestClient,
) -> None:
    ((code, message),) = warned(client, python("return float(sample['output_text'].split('#')[1])"))
    assert code == "grader_unscorable"
    assert "IndexError: list index out of range" in message


@pytest.mark.parametrize(
    ("name", "path"), [("note", "item.note"), ("الجواب", "item.الجواب"), ("a note", 'item["a note"]')]
)
def test_a_reference_that_is_null_in_some_rows_causes_a_warning(
    client: TestClient, name: str, path: str
) -> None:
    grader = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}"}
    ((code, message),) = warned(client, {**grader, "reference": f"{{{{ {path} }}}}"}, **{name: None})
    assert code == "null_reference"
    assert message == (
        f'training_file: {{{{{path}}}}} is null in 2 rows; the grader reads it as the text "null".'
    )


def test_a_python_grader_that_raises_on_some_completions_causes_a_warning(client: TestClient) -> None:
    ((code, message),) = warned(client, python("return float(sample['output_text'].split()[3] == '5.')"))
    assert (code, message.partition(". ")[0]) == (
        "grader_raises",
        "The grader raised on 6 of 8 trial completions: IndexError: list index out of range",
    )


def test_the_trial_of_an_inline_rule_has_a_deadline(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty-two of them on texts of 64 KiB take a minute for each completion."""
    constant = {"type": "string_check", "operation": "eq", "input": "a", "reference": "a"}
    assert [code for code, _ in warned(client, constant)] == ["grader_constant"]
    monkeypatch.setattr(grader_trial, "TRIAL_SECONDS", -1.0)
    assert warned(client, {**constant, "reference": "b"}) == []


def test_a_constant_python_grader_causes_a_warning(client: TestClient) -> None:
    ((code, message),) = warned(client, python("return 1"))
    assert (code, "the reward 1" in message) == ("grader_constant", True)


def test_a_hanging_grader_does_not_delay_the_request(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader_trial, "DEADLINE_SECONDS", 0.5)
    monkeypatch.setattr(grader_trial, "TRIAL_SECONDS", 40.0)
    started = time.monotonic()
    ((code, message),) = warned(client, python("while True: pass"))
    assert (code, "no answer within 0.5 seconds" in message) == ("grader_unscorable", True)
    assert time.monotonic() - started < 60


def test_no_server_is_called_at_submit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with EndpointServer(lambda _: 1.0) as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        calling = {"type": "endpoint", "url": server.url}
        hanging = python("while True: pass")
        both = {"type": "multi", "graders": {"a": calling, "b": hanging}, "calculate_output": "a+b"}
        assert warned(client, calling) == []
        assert warned(client, both) == []
    assert server.requests == []


def test_a_reward_model_is_not_loaded_at_submit(client: TestClient) -> None:
    assert warned(client, {"type": "reward_model", "model": "tiny"}) == []


def test_a_library_that_only_workers_have_causes_no_warning(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "grading_command", lambda graders: ["/bin/false"])
    assert warned(client, python("return 1")) == []
    assert warned(client, {"type": "math", "reference": "{{item.answer}}"}) == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def grade(sample, item)\n    return 1", "line 1"),
        ("def judge(sample, item):\n    return 1", "must define grade"),
        ("def grade(sample):\n    return 1", "two arguments"),
    ],
)
def test_a_source_that_is_not_a_grader_is_refused(client: TestClient, source: str, reason: str) -> None:
    method = reinforcement({"type": "python", "source": source})
    answer = client.post("/v1/fine_tuning/jobs", json=request(upload(client), method=method))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "method.reinforcement.grader.source")
    assert reason in error["message"]
