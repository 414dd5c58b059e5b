"""Invalid input: each a clear 400 that names the place, and nothing is queued."""

from contextlib import ExitStack
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    CONTEXT_TOKENS,
    GRADER,
    chat,
    jsonl,
    make_model,
    num_jobs,
    reinforcement,
    request,
    row,
    store_file,
    upload,
)

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]


def refused(client: TestClient, database: Database, body: dict[str, Any]) -> dict[str, Any]:
    """The error of a POST that must be a 400 and queue nothing."""
    answer = client.post("/v1/fine_tuning/jobs", json=body)
    assert answer.status_code == 400, answer.text
    assert num_jobs(database) == 0
    return dict(answer.json()["error"])


def test_an_unknown_model_is_refused(client: TestClient, database: Database) -> None:
    error = refused(client, database, request(upload(client), model="absent"))
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'absent' is neither in the model catalogue nor one of your fine-tuned models" in error["message"]


SERVERS: tuple[tuple[str, Any], ...] = (
    ("tools", [{"type": "mcp", "server_url": "https://mcp.example.com/mcp"}]),
    ("environments", {"game": {"type": "openenv", "url": "https://game.example.com"}}),
)


@pytest.mark.parametrize(("field", "servers"), SERVERS, ids=[field for field, _ in SERVERS])
def test_checks_that_wait_for_servers_leave_threads_for_others(
    client: TestClient, app: FastAPI, field: str, servers: Any
) -> None:
    file_id, method = upload(client), reinforcement()
    method["reinforcement"][field] = servers
    with ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(app.state.server_limit.slot("tenant-a"))
        answer = client.post("/v1/fine_tuning/jobs/validate", json=request(file_id, method=method))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        assert "Too many requests that wait for other servers (limit: 16" in answer.json()["error"]["message"]
        assert client.post("/v1/fine_tuning/jobs/validate", json=request(file_id)).status_code == 200
        stack.enter_context(app.state.server_limit.slot("tenant-b"))


def test_a_foreign_fine_tuned_model_is_an_unknown_one(client: TestClient, database: Database) -> None:
    error = refused(client, database, request(upload(client), model="ft:tiny:tenant-b::abc"))
    assert (error["param"], error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"sede": 1}, "sede", "unknown_field"),
        (
            {"method": reinforcement(group_sise=4)},
            "method.reinforcement.hyperparameters.group_sise",
            "unknown_field",
        ),
        (
            {"method": reinforcement(group_size=1)},
            "method.reinforcement.hyperparameters.group_size",
            "invalid_value",
        ),
        ({"method": reinforcement(beta=-0.1)}, "method.reinforcement.hyperparameters.beta", "invalid_value"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"seed": 2**31}, "seed", "invalid_value"),
        ({"suffix": "a\nb"}, "suffix", "invalid_value"),
        ({"suffix": ""}, "suffix", "invalid_value"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
        ({"resources": {"gpus": 65}}, "resources.gpus", "invalid_value"),
        ({"integrations": [{"type": "wandb"}]}, "integrations[0].wandb", "missing_field"),
        ({"model": None}, "model", "invalid_value"),
        ({"hyperparameters": {"n_epochs": 0}, "method": None}, None, "invalid_value"),
    ],
)
def test_a_bad_field_is_named(
    client: TestClient, database: Database, more: dict[str, Any], param: str | None, code: str
) -> None:
    error = refused(client, database, request("file-1", **more))
    assert error["code"] == code
    if param is not None:
        assert error["param"] == param
        assert param in error["message"]


def test_a_missing_field_is_named(client: TestClient, database: Database) -> None:
    body = request("file-1")
    del body["training_file"]
    error = refused(client, database, body)
    assert (error["param"], error["code"]) == ("training_file", "missing_field")


def test_a_formula_that_does_not_parse_is_refused(client: TestClient, database: Database) -> None:
    grader = {"type": "multi", "graders": {"a": GRADER}, "calculate_output": "2 * (a +"}
    error = refused(client, database, request("file-1", method=reinforcement(grader)))
    assert error["param"].startswith("method.reinforcement.grader")
    assert error["code"] == "invalid_value"


def test_an_unknown_file_is_refused(client: TestClient, database: Database) -> None:
    error = refused(client, database, request("file-absent"))
    assert (error["param"], error["code"]) == ("training_file", "file_not_found")
    assert error["message"] == "training_file: there is no file file-absent"


def test_a_foreign_file_is_an_unknown_one(
    client: TestClient, other_client: TestClient, database: Database
) -> None:
    error = refused(client, database, request(upload(other_client)))
    assert (error["param"], error["code"]) == ("training_file", "file_not_found")


def test_a_result_file_is_not_a_dataset(client: TestClient, settings: Settings, database: Database) -> None:
    file_id = store_file(settings, database, jsonl(row()), purpose="fine-tune-results")
    error = refused(client, database, request(file_id))
    assert (error["param"], error["code"]) == ("training_file", "invalid_file_purpose")


def test_a_row_without_a_user_turn_names_its_line(client: TestClient, database: Database) -> None:
    file_id = upload(client, jsonl(row(), chat(), row(), chat()))
    error = refused(client, database, request(file_id))
    assert (error["param"], error["code"]) == ("training_file[2].messages", "invalid_training_file")
    assert [problem["param"] for problem in error["problems"]] == [
        "training_file[2].messages",
        "training_file[4].messages",
    ]
    assert error["message"].startswith("2 problems: training_file[2].messages: the last message must have")


def test_a_problem_of_many_rows_is_reported_once_and_at_most_ten_kinds(
    client: TestClient, database: Database
) -> None:
    without = {"messages": row()["messages"]}
    others = [without | {f"field{n}": 1} for n in range(11)]
    error = refused(client, database, request(upload(client, jsonl(without, without, *others, without))))
    shown = error["message"].split("; ")
    assert shown[0].startswith("14 problems: training_file[1].answer: the grader's {{item.answer}} is not in")
    assert shown[0].endswith("(and 2 more like it)")
    assert [text.partition(":")[0] for text in shown[1:]] == [
        *(f"training_file[{line}].answer" for line in range(3, 12)),
        "and 2 more",
    ]


def test_problems_of_the_validation_file_are_its_own(client: TestClient, database: Database) -> None:
    body = request(upload(client), validation_file=upload(client, jsonl(chat())))
    error = refused(client, database, body)
    assert (error["param"], error["code"]) == ("validation_file[1].messages", "invalid_validation_file")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "no field beside its messages"),
        ({"verdict": "yes", "level": 2}, "level, verdict"),
        ({"x" * 50: 1} | {f"f{n}": 1 for n in range(8)}, f"{', '.join(f'f{n}' for n in range(8))}, …"),
    ],
)
def test_a_template_that_does_not_resolve_names_row_and_fields(
    client: TestClient, database: Database, given: dict[str, Any], shown: str
) -> None:
    other = {"messages": row()["messages"], **given}
    error = refused(client, database, request(upload(client, jsonl(row(), other))))
    assert error["param"] == "training_file[2].answer"
    sentence = f"the grader's {{{{item.answer}}}} is not in this row, which has {shown}"
    assert error["message"] == f"training_file[2].answer: {sentence}"


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_is_refused(
    client: TestClient, settings: Settings, database: Database, content: bytes
) -> None:
    error = refused(client, database, request(store_file(settings, database, content)))
    assert (error["param"], error["message"]) == ("training_file", "training_file: has no rows")


def test_a_file_that_is_not_utf8_names_the_line(
    client: TestClient, settings: Settings, database: Database
) -> None:
    content = jsonl(row()) + '{"prompt": "é"}\n'.encode("latin-1")
    error = refused(client, database, request(store_file(settings, database, content)))
    assert error["message"] == "training_file[2]: is not UTF-8 (byte 13 of the line)"


def test_a_file_over_the_row_limit_is_refused(
    client: TestClient, app: FastAPI, settings: Settings, database: Database
) -> None:
    app.state.settings = settings.model_copy(update={"max_rows": 100})
    file_id = store_file(settings, database, jsonl(row()) * 100_100)
    error = refused(client, database, request(file_id))
    assert error["message"] == "training_file: has more than 100 rows, the limit"


def test_a_prompt_that_does_not_fit_names_its_row(client: TestClient, database: Database) -> None:
    fitting = CONTEXT_TOKENS - 16 - 2  # two words are the template's
    file_id = upload(client, jsonl(row("w " * fitting), row("w " * (fitting + 1))))
    error = refused(client, database, request(file_id))
    assert error["param"] == "training_file[2].messages"
    assert f"has {CONTEXT_TOKENS - 15} tokens; with max_completion_tokens = 16" in error["message"]


SUPERVISED = {"type": "supervised", "supervised": {"hyperparameters": {"max_tokens": 20}}}


@pytest.mark.parametrize(
    ("fitting", "too_long"),
    [
        # 16 words, <user>, <assistant>, the reply and its end-of-sequence are 20 tokens
        (chat("w " * 16, "yes"), chat("w " * 17, "yes")),
        ({"prompt": "w " * 18, "completion": "yes"}, {"prompt": "w " * 19, "completion": "yes"}),
    ],
)
def test_a_supervised_row_over_max_tokens_names_its_row(
    client: TestClient, database: Database, fitting: dict[str, Any], too_long: dict[str, Any]
) -> None:
    error = refused(client, database, request(upload(client, jsonl(fitting, too_long)), method=SUPERVISED))
    assert [problem["param"].partition(".")[0] for problem in error["problems"]] == ["training_file[2]"]
    assert "has 21 tokens, more than max_tokens = 20" in error["message"]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, 'the model has no chat template. Send {"prompt": …} rows'),
        ("{% if %}", "the model's chat template cannot be read: Expected an expression"),
        ("{{ raise_exception('roles must alternate') }}", "template refuses it: roles must alternate"),
    ],
)
def test_messages_need_a_chat_template_that_takes_them(
    client: TestClient, settings: Settings, database: Database, template: str | None, reason: str
) -> None:
    make_model(settings.home, "other", template=template)
    error = refused(client, database, request(upload(client, jsonl(row())), model="other"))
    assert error["param"] == "training_file[1].messages"
    assert reason in error["message"]


def validated(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/fine_tuning/jobs/validate", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_validate_reports_everything_without_queueing(client: TestClient, database: Database) -> None:
    file_id = upload(client, jsonl(row(), row("What is 3+3?", "6")))
    held_out = upload(client, jsonl(row("What is 4+4?", "8"), row("What is 5+5?", "10")))
    method = reinforcement(prompts_per_step=1, n_epochs=3)
    report = validated(client, request(file_id, validation_file=held_out, method=method))
    assert report["object"] == "fine_tuning.job.validation"
    assert (report["valid"], report["problems"], report["warnings"]) == (True, [], [])
    assert report["rows"] == {"training": 2, "validation": 2}
    assert report["total_steps"] == 6
    assert report["method"]["reinforcement"]["hyperparameters"]["group_size"] == 8
    assert num_jobs(database) == 0


def test_validate_lists_problems_in_a_200(client: TestClient) -> None:
    report = validated(client, request(upload(client, jsonl(chat())), model="absent"))
    assert report["valid"] is False
    assert [problem["param"] for problem in report["problems"]] == ["model", "training_file[1].messages"]


def test_unused_hyperparameters_are_a_warning(client: TestClient) -> None:
    report = validated(client, request(upload(client), hyperparameters={"n_epochs": 3}))
    assert [warning["code"] for warning in report["warnings"]] == ["hyperparameters_unused"]


def test_deprecated_hyperparameters_alone_are_the_supervised_method(client: TestClient) -> None:
    body = {"model": "tiny", "training_file": upload(client, jsonl(*[chat()] * 4))}
    report = validated(client, body | {"hyperparameters": {"n_epochs": 2, "batch_size": 4}})
    assert report["method"]["type"] == "supervised"
    assert report["total_steps"] == 2
    assert validated(client, body)["method"]["supervised"]["hyperparameters"]["n_epochs"] == "auto"
