from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import BadRequestError, OpenAI

from service.platform.db import Database
from service.web.auth import create_key
from tests.conftest import on_sqlite

pytestmark = on_sqlite  # one database is enough here: graders keep nothing

PREFIX = "/v1/fine_tuning/alpha/graders"
NUMERIC = {"type": "numeric", "name": "right", "reference": "{{item.answer}}"}
SHAPE = {"type": "format", "name": "shape", "tags": ["answer"]}
MULTI = {
    "type": "multi",
    "name": "both",
    "graders": {"right": NUMERIC, "shape": SHAPE},
    "calculate_output": "0.8*right + 0.2*shape",
}
NO_ERRORS = {
    "formula_parse_error": False,
    "sample_parse_error": False,
    "truncated_observation_error": False,
    "unresponsive_reward_error": False,
    "invalid_variable_error": False,
    "other_error": False,
    "python_grader_server_error": False,
    "python_grader_server_error_type": None,
    "python_grader_runtime_error": False,
    "python_grader_runtime_error_details": None,
    "model_grader_server_error": False,
    "model_grader_refusal_error": False,
    "model_grader_parse_error": False,
    "model_grader_server_error_details": None,
}


def run(client: TestClient, grader: Any, text: str, item: Any = None, **more: Any) -> dict[str, Any]:
    answer = client.post(f"{PREFIX}/run", json={"grader": grader, "model_sample": text, "item": item, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def refusal(client: TestClient, body: Any, path: str = "validate") -> dict[str, Any]:
    answer = client.post(f"{PREFIX}/{path}", json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_run_of_a_multi_answers_in_openais_shape(client: TestClient) -> None:
    body = run(client, MULTI, "<answer>7</answer>", {"answer": 7, "messages": []})
    assert 0 <= body["metadata"].pop("execution_time") < 1
    assert body == {
        "reward": 1.0,
        "scorable": True,
        "metadata": {
            "name": "both",
            "type": "multi",
            "scores": {"right": 1.0, "shape": 1.0},
            "token_usage": None,
            "sampled_model_name": None,
            "errors": NO_ERRORS,
        },
        "sub_rewards": {"right": 1.0, "shape": 1.0},
        "grader_errors": {},
        "feedback": "",
        "explanations": {},
        "printed": {},
        "model_grader_token_usage_per_model": {},
    }


def test_a_run_of_a_single_grader_has_no_sub_rewards(client: TestClient) -> None:
    body = run(client, {**NUMERIC, "name": ""}, "It is 8.", {"answer": 7})
    assert (body["reward"], body["scorable"], body["sub_rewards"]) == (0.0, True, {})
    assert (body["metadata"]["name"], body["metadata"]["type"]) == ("numeric", "numeric")


def test_an_unscorable_run_is_marked_and_not_a_silent_0(client: TestClient) -> None:
    body = run(client, MULTI, "<answer>7</answer>", {"other": 7})
    assert (body["reward"], body["scorable"]) == (0.0, False)
    assert body["metadata"]["errors"] == {**NO_ERRORS, "invalid_variable_error": True}
    assert body["sub_rewards"] == {"right": None, "shape": 1.0}
    assert body["grader_errors"] == {
        "right": {"code": "invalid_variable_error", "message": "item.answer does not resolve"}
    }


def test_messages_are_not_part_of_the_item(client: TestClient) -> None:
    grader = {"type": "string_check", "operation": "eq", "input": "{{item.messages}}", "reference": ""}
    body = run(client, grader, "", {"messages": []})
    assert body["metadata"]["errors"]["invalid_variable_error"] is True


def test_a_json_sample_has_paths_and_another_one_is_a_parse_error(client: TestClient) -> None:
    grader = {"type": "numeric", "input": "{{sample.output_json.x}}", "reference": "5"}
    assert run(client, grader, '{"x": 5}')["reward"] == 1.0
    assert run(client, grader, "five")["metadata"]["errors"]["sample_parse_error"] is True


def test_a_length_in_tokens_needs_their_number(client: TestClient) -> None:
    grader = {"type": "length", "mode": "soft_overlong", "maximum": 20, "buffer": 10}
    assert run(client, grader, "text", num_tokens=15)["reward"] == -0.5
    assert run(client, grader, "text")["scorable"] is False


def test_validate_answers_the_grader_with_its_defaults(client: TestClient) -> None:
    answer = client.post(f"{PREFIX}/validate", json={"grader": NUMERIC})
    assert answer.json() == {
        "grader": {
            **NUMERIC,
            "input": "{{sample.output_text}}",
            "tag": None,
            "absolute_tolerance": 0.0,
            "relative_tolerance": 0.0,
        }
    }


@pytest.mark.parametrize("graders", [{"right": NUMERIC}, [NUMERIC], NUMERIC])
def test_validate_answers_the_graders_of_a_multi_by_key(client: TestClient, graders: Any) -> None:
    grader = {"type": "multi", "graders": graders, "calculate_output": "right"}
    first = client.post(f"{PREFIX}/validate", json={"grader": grader}).json()["grader"]
    assert list(first["graders"]) == ["right"]
    assert client.post(f"{PREFIX}/validate", json={"grader": first}).json()["grader"] == first


@pytest.mark.parametrize(
    ("grader", "param", "code", "complaint"),
    [
        ({**MULTI, "calculate_output": "right +"}, "grader.calculate_output", "invalid_value", "character 8"),
        ({**MULTI, "calculate_output": "a"}, "grader.calculate_output", "invalid_value", "unknown grader a"),
        ({**NUMERIC, "reference": "{{item.a"}, "grader.reference", "invalid_value", "not closed"),
        ({**NUMERIC, "tolerance": 1}, "grader.tolerance", "unknown_field", "Unknown field"),
        ({"type": "numeric"}, "grader.reference", "missing_field", "Field required"),
        ({"type": "vibes"}, "grader.type", "invalid_value", "'string_check'"),
        ({**MULTI, "graders": {"a": MULTI}}, "grader.graders.a.type", "invalid_value", "'numeric'"),
        (
            {**MULTI, "graders": {"right": {**NUMERIC, "tag": "a b"}}},
            "grader.graders.right.tag",
            "invalid_value",
            "pattern",
        ),
    ],
)
def test_a_wrong_grader_is_a_400_that_names_the_field(
    client: TestClient, grader: Any, param: str, code: str, complaint: str
) -> None:
    for path, more in (("validate", {}), ("run", {"model_sample": ""})):
        error = refusal(client, {"grader": grader, **more}, path)
        assert (error["param"], error["code"]) == (param, code)
        assert complaint in error["message"]


def test_a_run_without_a_sample_and_an_unknown_field_are_refused(client: TestClient) -> None:
    assert refusal(client, {"grader": NUMERIC}, "run")["param"] == "model_sample"
    assert refusal(client, {"grader": NUMERIC, "items": {}})["param"] == "items"


def test_without_a_key_no_grader_runs(anonymous: TestClient, database: Database) -> None:
    body = {"grader": NUMERIC, "model_sample": "7"}
    assert anonymous.post(f"{PREFIX}/run", json=body).status_code == 401
    assert anonymous.post(f"{PREFIX}/validate", json=body).status_code == 401
    with database.transaction() as session:
        key = create_key(session, "tenant-a", scopes=("write",))
    headers = {"authorization": f"Bearer {key}"}
    assert anonymous.post(f"{PREFIX}/run", json=body, headers=headers).status_code == 403


def test_openais_client_runs_and_validates_graders(openai_client: OpenAI) -> None:
    graders = openai_client.fine_tuning.alpha.graders
    string_check: Any = {
        "type": "string_check",
        "name": "exact",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }
    answer = graders.run(grader=string_check, model_sample="yes", item={"answer": "yes"})
    assert (answer.reward, answer.metadata.name, answer.metadata.type) == (1.0, "exact", "string_check")
    assert answer.metadata.errors.invalid_variable_error is False
    assert answer.metadata.errors.api_model_grader_refusal_error is False
    unscorable = graders.run(grader=string_check, model_sample="yes", item={})
    assert unscorable.reward == 0.0
    assert unscorable.metadata.errors.invalid_variable_error is True
    validated = graders.validate(grader=string_check).grader
    assert validated is not None
    assert validated.model_dump() == string_check


def test_openais_client_learns_which_field_of_a_grader_is_wrong(openai_client: OpenAI) -> None:
    wrong: Any = {**MULTI, "calculate_output": "right * (shape"}
    with pytest.raises(BadRequestError) as caught:
        openai_client.fine_tuning.alpha.graders.validate(grader=wrong)
    assert (caught.value.param, caught.value.type) == ("grader.calculate_output", "invalid_request_error")
    assert "( at character 9 is not closed" in caught.value.message
