"""Every option of a reinforcement job, set wrongly: refused at its field, or a warning of no effect."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from grpo_engine.config.guards import Guard, TrippedGuard
from grpo_engine.config.recipes import RECIPES
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.embedded import call_grpo, environment
from tests.service.job_samples import (
    GRADER,
    add_checkpoint,
    add_job,
    num_jobs,
    reinforcement,
    request,
    store_file,
    upload,
)
from tests.service.web.error_samples import error_of

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]

JOBS = "/v1/fine_tuning/jobs"
AT = "method.reinforcement"
MULTI = {"type": "multi", "graders": {"a": GRADER, "b": GRADER}, "calculate_output": "a"}
HTTP_TOOL = {"type": "http", "name": "ask", "url": "https://example.com/ask"}
FILE = "$FILE"
"""Placeholder for the id of an uploaded file."""


def with_options(**options: Any) -> dict[str, Any]:
    """A method with more beside its grader."""
    method = reinforcement(options.pop("grader", GRADER), **options.pop("hyperparameters", {}))
    method["reinforcement"] |= options
    return method


def with_file(value: Any, file_id: str) -> Any:
    if isinstance(value, dict):
        return {name: with_file(inner, file_id) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_file(inner, file_id) for inner in value]
    return file_id if value == FILE else value


def refused(client: TestClient, database: Database, method: dict[str, Any]) -> dict[str, Any]:
    """The error of a job that is refused; nothing is queued."""
    file_id = upload(client)
    answer = client.post(JOBS, json=request(file_id, method=with_file(method, file_id)))
    assert (answer.status_code, num_jobs(database)) == (400, 0), answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"].startswith(f"{error['param']}: ")
    return error


HYPERPARAMETERS: list[tuple[dict[str, Any], str, str]] = [
    ({"advantage": "z"}, "advantage", "'gdpo' or 'process', got 'z'"),
    ({"advantage_ddof": 2}, "advantage_ddof", "less than or equal to 1"),
    ({"advantage_ddof": True}, "advantage_ddof", "got true"),
    ({"loss_type": "ppo"}, "loss_type", "'sapo' or 'reinforce', got 'ppo'"),
    ({"epsilon_low": 1}, "epsilon_low", "less than 1"),
    ({"epsilon_high": -1}, "epsilon_high", "greater than 0"),
    ({"epsilon": 0.2, "epsilon_low": 0.1}, "epsilon", "another name of epsilon_low"),
    ({"delta": 1}, "delta", "greater than 1"),
    ({"entropy_coef": -0.1}, "entropy_coef", "greater than or equal to 0"),
    ({"top_entropy_quantile": 0}, "top_entropy_quantile", "greater than 0"),
    ({"sapo_temperature_positive": 0}, "sapo_temperature_positive", "greater than 0"),
    ({"beta": True}, "beta", "Input should be a valid number, got true."),
    ({"beta": "auto"}, "beta", "valid number"),
    ({"kl_estimator": "k4"}, "kl_estimator", "'k1', 'k2' or 'k3'"),
    ({"kl_placement": "x"}, "kl_placement", "'loss', 'loss_sequence' or 'reward'"),
    ({"kl_target": 0}, "kl_target", "greater than 0"),
    ({"kl_target": 0.1, "beta": 0}, "kl_target", "needs beta above 0"),
    ({"kl_target": 0.1, "recipe": "dapo"}, "kl_target", "needs beta above 0"),
    ({"num_iterations": 1.5}, "num_iterations", "valid integer"),
    ({"importance_correction": "x"}, "importance_correction", "'sequence_truncate' or 'sequence_mask'"),
    ({"importance_cap": 0}, "importance_cap", "greater than 1"),
    ({"group_size": 1}, "group_size", "at least 2|greater than or equal to 2"),
    ({"group_size": 4, "num_generations": 8}, "num_generations", "another name of group_size"),
    ({"group_size": 4, "compute_multiplier": 2}, "compute_multiplier", "contradict"),
    ({"prompts_per_step": 4, "batch_size": 2}, "batch_size", "contradict"),
    ({"learning_rate": 1e-3, "learning_rate_multiplier": 2}, "learning_rate_multiplier", "contradict"),
    ({"lora": "full", "lora_r": 4}, "lora", "contradict"),
    ({"n_steps": 2, "n_epochs": 2}, "n_epochs", "not both"),
    ({"top_p": 0.9}, "top_p", "biases every ratio"),
    ({"top_k": 50}, "top_k", "biases every ratio"),
    ({"temperature": 0}, "temperature", "greater than or equal to 0.000001"),
    ({"stop": [""]}, "stop[0]", "at least 1 character"),
    ({"stop": ""}, "stop[0]", "at least 1 character"),
    ({"stop": 3}, "stop", "should be a list"),
    ({"stop": ["x"] * 17}, "stop", "at most 16 items, not 17"),
    ({"max_turns": 0}, "max_turns", "greater than or equal to 1"),
    ({"overlong_buffer_tokens": 17}, "overlong_buffer_tokens", "cannot exceed max_completion_tokens"),
    ({"dynamic_sampling": -1}, "dynamic_sampling", "greater than or equal to 0"),
    ({"dynamic_sampling": True}, "dynamic_sampling", "a valid"),
    ({"curriculum": "hard"}, "curriculum", "'none', 'rest' or 'levels'"),
    ({"recipe": "ppo"}, "recipe", "'rloo' or 'reinforce_plus_plus'"),
    ({"self_distillation": {"alone": True}}, "self_distillation.alone", "set beta to 0"),
    ({"self_distillation": {"template": "x"}}, "self_distillation.template", "{prompt} and {feedback}"),
    ({"self_distillation": {"weight": True}}, "self_distillation.weight", "a valid"),
    ({"guards": [{"watch": "x"}]}, "guards[0].watch", "'reward_length' or 'sampler_difference', got 'x'"),
    ({"guards": {"watch": "kl"}}, "guards", "should be a list"),
    ({"guards": [{}]}, "guards[0].watch", "Field required"),
    ({"guards": [{"watch": "kl", "action": "x"}]}, "guards[0].action", "'stop' or 'raise_beta'"),
    ({"guards": [{"watch": "truncation", "threshold": 50}]}, "guards[0].threshold", "never above 1"),
    (
        {"beta": 0, "guards": [{"watch": "kl"}, {"watch": "kl", "action": "raise_beta"}]},
        "guards[1].action",
        "needs beta above 0",
    ),
    ({"early_stopping": {}}, "early_stopping", "needs a validation_file"),
    ({"early_stopping": {"patience": 0}}, "early_stopping.patience", "greater than or equal to 1"),
    ({"min_p": 0.1}, "min_p", "Unknown field"),
]


@pytest.mark.parametrize(("given", "field", "phrase"), HYPERPARAMETERS, ids=str)
def test_a_wrong_hyperparameter_is_refused_at_its_field(
    client: TestClient, database: Database, given: dict[str, Any], field: str, phrase: str
) -> None:
    error = refused(client, database, reinforcement(**given))
    assert error["param"] == f"{AT}.hyperparameters.{field}"
    assert any(each in error["message"] for each in phrase.split("|")), error["message"]


METHODS: list[tuple[dict[str, Any], str, str]] = [
    ({"hyperparameters": {"advantage": "gdpo"}}, "hyperparameters.advantage", "give a multi grader"),
    ({"hyperparameters": {"advantage": "process"}}, "hyperparameters.advantage", "give a process grader"),
    (
        {"grader": {**MULTI, "aggregation": "gdpo"}, "hyperparameters": {"advantage": "mean_only"}},
        "hyperparameters.advantage",
        "needs advantage gdpo",
    ),
    ({"tools": [{"type": "bash"}]}, "tools[0].type", "one of 'python', 'http', 'mcp', got 'bash'"),
    ({"tools": {"type": "python"}}, "tools", "should be a list"),
    ({"tools": [{"type": "python"}, {**HTTP_TOOL, "name": "python"}]}, "tools[1].name", "different names"),
    ({"tools": [{**HTTP_TOOL, "parameters": {"type": "x"}}]}, "tools[0].parameters", "schema.type"),
    (
        {"tools": [{**HTTP_TOOL, "parameters": {"type": "array"}}]},
        "tools[0].parameters",
        "must describe an object",
    ),
    ({"tools": [{**HTTP_TOOL, "url": "https://10.0.0.1/"}]}, "tools[0].url", "not a public address"),
    ({"retention": [{"name": "a", "file": "file-x"}]}, "retention[0].file", "there is no file file-x"),
    ({"retention": [{"name": "a/b", "file": FILE}]}, "retention[0].name", "should match pattern"),
    ({"retention": [{"name": "a", "file": FILE}] * 2}, "retention[1].name", "different names"),
    (
        {"retention": [{"name": "validation", "file": FILE}]},
        "retention[0].name",
        "cannot be named validation",
    ),
    ({"retention": [{"name": "a"}]}, "retention[0].file", "Field required"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
        "Field required",
    ),
    ({"eval_grader": GRADER}, "eval_grader", "needs a validation_file"),
    ({"grader": {**MULTI, "calculate_output": "a/0"}}, "grader.calculate_output", "can never give a number"),
    ({"retention_files": {"a": "/etc/passwd"}}, "retention_files", "Unknown field"),
]


@pytest.mark.parametrize(("given", "field", "phrase"), METHODS, ids=str)
def test_a_wrong_part_of_a_method_is_refused_at_its_field(
    client: TestClient, database: Database, given: dict[str, Any], field: str, phrase: str
) -> None:
    error = refused(client, database, with_options(**given))
    assert error["param"] == f"{AT}.{field}"
    assert phrase in error["message"]


def test_another_tenants_rows_are_not_a_retention_set(
    client: TestClient, settings: Settings, database: Database
) -> None:
    theirs = store_file(settings, database, b'{"prompt": "a"}\n', tenant="tenant-b")
    error = refused(client, database, with_options(retention=[{"name": "a", "file": theirs}]))
    assert (error["param"], error["code"]) == (f"{AT}.retention[0].file", "file_not_found")


def validated(client: TestClient, method: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(f"{JOBS}/validate", json=request(upload(client), method=method))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"beta": 0, "kl_estimator": "k1"}, "kl_estimator"),
        ({"beta": 0, "train_groups_without_signal": True}, "train_groups_without_signal"),
        ({"kl_placement": "reward", "kl_ratio_weight": True}, "kl_ratio_weight"),
        ({"kl_horizon": 5}, "kl_horizon"),
        ({"loss_type": "cispo", "delta": 2}, "delta"),
        ({"loss_type": "sapo", "epsilon_high": 0.3}, "epsilon_high"),
        ({"sapo_temperature_positive": 2}, "sapo_temperature_positive"),
        ({"advantage": "mean_only", "advantage_ddof": 0}, "advantage_ddof"),
        ({"importance_correction": "none", "importance_cap": 5}, "importance_cap"),
        ({"overlong_penalty": 2}, "overlong_penalty"),
        ({"max_turns": 4}, "max_turns"),
        ({"beta": 0, "guards": [{"watch": "kl"}]}, "guards[0]"),
        ({"eval_interval": 4}, "eval_interval"),
    ],
    ids=str,
)
def test_an_option_without_effect_causes_a_warning(
    client: TestClient, given: dict[str, Any], name: str
) -> None:
    report = validated(client, reinforcement(**given))
    (warning,) = [each for each in report["warnings"] if each["code"] == "option_without_effect"]
    assert report["valid"]
    assert warning["message"].startswith(f"{name} has no effect: ")


def test_a_cispo_bound_below_one_causes_a_warning(client: TestClient) -> None:
    report = validated(client, reinforcement(recipe="cispo", epsilon_high=0.28))
    assert [each["code"] for each in report["warnings"]] == ["cispo_bound_below_1"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_expands_to_the_same_job_when_sent_back_and_warns_of_nothing(
    client: TestClient, recipe: str
) -> None:
    report = validated(client, reinforcement(recipe=recipe))
    assert report["warnings"] == []
    hyperparameters = report["method"]["reinforcement"]["hyperparameters"]
    assert RECIPES[recipe].items() <= hyperparameters.items()
    again = validated(client, report["method"])
    assert (again["method"], again["warnings"]) == (report["method"], [])


def test_one_stop_text_is_accepted_as_a_list(client: TestClient) -> None:
    report = validated(client, reinforcement(stop="END"))
    assert report["method"]["reinforcement"]["hyperparameters"]["stop"] == ["END"]


def test_a_wrong_judge_message_is_reported_without_other_forms(client: TestClient) -> None:
    judge = {"type": "score_model", "model": "m", "input": [{"role": "user", "content": "{{oops}}"}]}
    error = error_of(client.post("/v1/fine_tuning/alpha/graders/validate", json={"grader": judge}))
    assert error["param"] == "grader.input[0].content"
    assert error["message"].endswith("{{oops}} must start with item or sample, got '{{oops}}'.")


def test_a_formula_that_never_has_a_value_is_not_a_grader(client: TestClient) -> None:
    grader = {**MULTI, "calculate_output": "a/0"}
    for verb, more in (("validate", {}), ("run", {"model_sample": "4", "item": {"answer": "4"}})):
        body = {"grader": grader, **more}
        error = error_of(client.post(f"/v1/fine_tuning/alpha/graders/{verb}", json=body))
        assert error["param"] == "grader.calculate_output"


@pytest.mark.usefixtures("database_url")
def test_a_share_is_shown_in_percent_and_one_step_in_the_singular() -> None:
    at_once = TrippedGuard(Guard(watch="truncation", patience=1), 3, 1.0).message
    assert at_once.startswith(
        "100% of the completions were cut at max_completion_tokens (limit 50%) in step 3."
    )
    assert TrippedGuard(Guard(watch="kl"), 3, 12.5).message.startswith(
        "The policy is 12.5 nats per completion away"
    )


def test_missing_weights_are_refused_at_the_field_that_names_them(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, evaluation={"best": {"step": 0, "reward": 0.5}})
    add_checkpoint(settings, database, job_id, 10, b"ten")
    error = error_of(client.get(f"{JOBS}/{job_id}/adapter", params={"checkpoint": "best"}), 404)
    assert error["param"] == "checkpoint"
    assert error["message"].endswith("did better on the held-out rows. Use checkpoint=final.")


def test_the_command_shows_the_evidence_once_and_the_method_by_its_own_name(
    settings: Settings, database: Database, server_url: str, api_key: str
) -> None:
    failure = {"code": "grader_contract", "message": "m", "hint": "h", "evidence": ["a: broken", "a: broken"]}
    method = {"type": "training_free", "training_free": {"grader": GRADER, "hyperparameters": {}}}
    job_id = add_job(database, JobState.FAILED, failure=failure, method=method)
    done = call_grpo(
        "status", job_id, environment=environment(settings.home, GRPO_URL=server_url, GRPO_API_KEY=api_key)
    )
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines.count("evidence a: broken") == 1
    assert "a: broken" not in lines
    assert "method training_free" in lines
