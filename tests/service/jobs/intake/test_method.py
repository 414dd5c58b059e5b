"""Methods that could never train are refused or cause a warning before the job is queued."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.intake.checks.method import never_a_number
from tests.conftest import on_sqlite
from tests.service.job_samples import CONTEXT_TOKENS, GRADER, jsonl, reinforcement, request, row, upload

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "number"}}}


def validated(client: TestClient, method: dict[str, Any], content: bytes | None = None) -> dict[str, Any]:
    body = request(upload(client, content), method=method)
    answer = client.post("/v1/fine_tuning/jobs/validate", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def with_format(response_format: Any) -> dict[str, Any]:
    method = reinforcement()
    method["reinforcement"]["response_format"] = response_format
    return method


def warned(report: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in report["warnings"]]


def multi(formula: str, **parts: Any) -> dict[str, Any]:
    return reinforcement({"type": "multi", "graders": parts or {"a": GRADER}, "calculate_output": formula})


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        (None, []),
        ({"type": "text"}, []),
        ({"type": "json_object"}, ["response_format_not_enforced"]),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}},
            ["response_format_not_enforced"],
        ),
    ],
)
def test_a_response_format_of_openais_is_accepted_with_a_warning(
    client: TestClient, given: Any, codes: list[str]
) -> None:
    report = validated(client, with_format(given))
    assert (report["problems"], warned(report)) == ([], codes)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "type"),
        ({"type": "xml"}, "xml"),
        ({"type": "text", "more": 1}, "more: Extra inputs"),
        ({"type": "json_schema"}, "json_schema: Field required"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "json_schema.schema: Field required"),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objct"}}},
            "json_schema.schema: schema.type",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"patternProperties": {}}}},
            "patternProperties",
        ),
    ],
)
def test_any_other_response_format_is_a_problem(client: TestClient, given: Any, reason: str) -> None:
    (problem,) = validated(client, with_format(given))["problems"]
    assert problem["param"].startswith("method.reinforcement.response_format")
    assert reason in problem["message"]


@pytest.mark.parametrize("modules", [[], ["q_proj", ""]])
def test_an_adapter_on_no_module_is_refused(client: TestClient, modules: list[str]) -> None:
    body = request(upload(client), method=reinforcement(lora={"target_modules": modules}))
    answer = client.post("/v1/fine_tuning/jobs", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"] == "method.reinforcement.hyperparameters.lora.target_modules"


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("1/0", "1 / 0 has no finite value"),
        ("a + 2*log(1-1)", "log(0) has no finite value"),
        ("max(a, sqrt(-1))", "sqrt(-1) has no finite value"),
        ("a/0", "it divides by 0"),
        ("1 + a/(2-2)", "it divides by 0"),
        ("1/a", None),
        ("2^3 + a", None),
        ("1", None),
    ],
)
def test_a_formula_has_no_value_where_a_constant_in_it_has_none(formula: str, reason: str | None) -> None:
    assert never_a_number(formula) == reason


def test_a_formula_that_never_gives_a_number_is_refused(client: TestClient) -> None:
    (problem,) = validated(client, multi("a + 1/0"))["problems"]
    assert problem["param"] == "method.reinforcement.grader.calculate_output"
    assert "can never give a number: 1 / 0 has no finite value" in problem["message"]


BLIND = {**GRADER, "input": "{{item.answer}}"}
TAGGED = {"type": "numeric", "reference": "{{item.answer}}", "tag": "final"}
LENGTH = {"type": "length", "mode": "linear", "target": 100, "maximum": 200}


@pytest.mark.parametrize(
    ("method", "codes"),
    [
        (reinforcement(), []),
        (reinforcement(TAGGED), []),
        (reinforcement(LENGTH), []),
        (reinforcement({"type": "format", "tags": ["think"]}), []),
        (reinforcement(BLIND), ["grader_constant"]),
        (multi("0*a"), ["grader_constant"]),
        (multi("1", a=LENGTH), ["grader_constant"]),
        (multi("a", a=GRADER, b=LENGTH), []),
    ],
)
def test_a_constant_grader_causes_a_warning(
    client: TestClient, method: dict[str, Any], codes: list[str]
) -> None:
    assert warned(validated(client, method)) == codes


def test_the_warning_about_a_constant_grader_names_the_consequence(client: TestClient) -> None:
    (warning,) = validated(client, reinforcement(BLIND))["warnings"]
    assert warning["message"] == (
        "The grader gave every trial completion the reward 1: if it does so in training, no group has signal."
    )


def test_a_limit_that_leaves_no_prompt_any_room_is_one_problem(client: TestClient) -> None:
    content = jsonl(*[row("w " * num) for num in (5, 3, 9)])
    report = validated(client, reinforcement(max_completion_tokens=CONTEXT_TOKENS), content)
    (problem,) = report["problems"]
    assert problem["param"] == "method.reinforcement.hyperparameters.max_completion_tokens"
    assert problem["message"].endswith(f"the model's context has {CONTEXT_TOKENS}; use at most 59")


def test_prompts_longer_than_the_model_are_problems_of_their_rows(client: TestClient) -> None:
    content = jsonl(*[row("w " * CONTEXT_TOKENS)] * 2)
    report = validated(client, reinforcement(), content)
    params = [problem["param"] for problem in report["problems"]]
    assert params == ["training_file[1].messages", "training_file[2].messages"]
