"""A field that is wrong is named as the client wrote it, with what it should be."""

import gzip
import json
import time
import tracemalloc
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.web.validation import field_path
from tests.conftest import on_sqlite
from tests.service.web.error_samples import JOBS, error_of

AT = "method.reinforcement"
GRADER = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


def job(hyperparameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    inner = {"grader": GRADER, "hyperparameters": hyperparameters or {}}
    method = {"type": "reinforcement", "reinforcement": inner}
    return {"model": "tiny", "training_file": "file-x", "method": method, **more}


def with_grader(**changes: Any) -> dict[str, Any]:
    body = job()
    body["method"]["reinforcement"]["grader"] = {**GRADER, **changes}
    return body


@on_sqlite
@pytest.mark.parametrize(
    ("hyperparameters", "field", "code", "reason"),
    [
        ({"group_size": 1}, "group_size", "invalid_value", "greater than or equal to 2, got 1"),
        ({"beta": -0.1}, "beta", "invalid_value", "greater than or equal to 0, got -0.1"),
        ({"bogus": 1}, "bogus", "unknown_field", "Unknown field"),
        ({"num_generations": 1}, "group_size", "invalid_value", "greater than or equal to 2"),
        ({"n_epochs": 0}, "n_epochs", "invalid_value", "'auto' or greater than or equal to 1, got 0"),
        ({"lora": {"rank": 0}}, "lora.rank", "invalid_value", "greater than or equal to 1, got 0"),
        ({"lora": {"bogus": 0}}, "lora.bogus", "unknown_field", "Unknown field"),
        ({"lora": "half"}, "lora", "invalid_value", "a JSON object or 'full', got 'half'"),
        ({"recipe": "x"}, "recipe", "invalid_value", "'rloo' or 'reinforce_plus_plus', got 'x'"),
        ({"temperature": "nan"}, "temperature", "invalid_value", "a valid number"),
        ({"group_size": "8"}, "group_size", "invalid_value", "a valid integer, got '8'"),
        ({"n_steps": True}, "n_steps", "invalid_value", "a valid integer, got true"),
        ({"mask_truncated_completions": 1}, "mask_truncated_completions", "invalid_value", "a valid boolean"),
    ],
    ids=str,
)
def test_a_bad_hyperparameter_is_named_with_its_range(
    client: TestClient, hyperparameters: dict[str, Any], field: str, code: str, reason: str
) -> None:
    error = error_of(client.post(JOBS, json=job(hyperparameters)))
    assert (error["param"], error["code"]) == (f"{AT}.hyperparameters.{field}", code)
    assert error["message"].startswith(f"{AT}.hyperparameters.{field}: ")
    assert reason in error["message"]


@on_sqlite
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "model", "missing_field"),
        ([], None, "invalid_value"),
        (job(bogus=1), "bogus", "unknown_field"),
        (job(metadata={"a": 1}), "metadata.a", "invalid_value"),
        (job(method={}), "method.type", "missing_field"),
        (job(method={"type": "sft"}), "method.type", "invalid_value"),
        (job(method={"type": "reinforcement"}), "method.reinforcement", "missing_field"),
        (with_grader(operation="lt"), f"{AT}.grader.operation", "invalid_value"),
        (with_grader(bogus=1), f"{AT}.grader.bogus", "unknown_field"),
        (with_grader(type="nope"), f"{AT}.grader.type", "invalid_value"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_field_is_named_without_unions_tags(
    client: TestClient, body: Any, param: str | None, code: str
) -> None:
    error = error_of(client.post(JOBS, json=body))
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")


@on_sqlite
def test_the_credentials_of_a_refused_url_are_not_repeated(client: TestClient) -> None:
    grader = {"type": "endpoint", "url": "https://me:secret@example.com/score"}
    body = job()
    body["method"]["reinforcement"]["grader"] = grader
    error = error_of(client.post(JOBS, json=body))
    assert error["message"].endswith("contains credentials, got 'https://…@example.com/score'.")


@on_sqlite
def test_several_bad_fields_are_all_named(client: TestClient) -> None:
    error = error_of(client.post(JOBS, json=job({"group_size": 1, "beta": -1})))
    second = f"{AT}.hyperparameters.beta: Input should be greater than or equal to 0, got -1"
    assert error["message"].endswith(f". Also wrong: {second}.")
    assert [problem["param"] for problem in error["problems"]] == [
        f"{AT}.hyperparameters.group_size",
        f"{AT}.hyperparameters.beta",
    ]
    assert "greater than or equal to 0" in error["problems"][1]["message"]


@on_sqlite
@pytest.mark.parametrize(
    ("body", "suggestion"),
    [
        (job({"n_step": 3}), " (did you mean n_steps?)"),
        (job({"lora": {"rnk": 3}}), " (did you mean rank?)"),
        (job({"bogus": 3}), ""),
        (job(sead=1), " (did you mean seed?)"),
        (with_grader(opration="eq"), " (did you mean operation?)"),
        (with_grader(tolerance=1), ""),
        (job(beta=0.1), f" (move it to {AT}.hyperparameters)"),
        (job({"rank": 8}), f" (move it to {AT}.hyperparameters.lora)"),
        (job({"seed": 3}), " (move it to the top level)"),
        (job(operation="eq"), f" (move it to {AT}.grader)"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_an_unknown_field_suggests_its_only_place_or_a_similar_one_of_its_object(
    client: TestClient, body: Any, suggestion: str
) -> None:
    assert error_of(client.post(JOBS, json=body))["message"].endswith(f": Unknown field{suggestion}.")


@on_sqlite
def test_many_wrong_fields_are_refused_at_once(client: TestClient) -> None:
    """The error is written on the event loop, so that all other requests wait for it."""
    many = {f"bogus{number}": 1 for number in range(20_000)}
    started = time.monotonic()
    error = error_of(client.post(JOBS, json=job(**many)))
    assert time.monotonic() - started < 10
    assert (error["param"], error["code"]) == ("bogus0", "unknown_field")


@on_sqlite
def test_an_error_for_too_many_entries_names_the_limit(client: TestClient) -> None:
    error = error_of(client.post(JOBS, json=job(metadata={str(n): "" for n in range(17)})))
    assert error["message"] == "metadata: Input should have at most 16 items."


@on_sqlite
def test_an_unknown_tag_is_shown_beside_the_known_ones(client: TestClient) -> None:
    error = error_of(client.post(JOBS, json=job(method={"type": "sft"})))
    known = "'reinforcement', 'supervised', 'training_free'"
    assert error["message"] == f"method.type: Input should be one of {known}, got 'sft'."


def test_a_field_named_like_its_tag_stays_in_the_path() -> None:
    body = {"grader": {"type": "multi", "graders": {"multi": {"type": "length", "length": 1}}}}
    location = ("body", "grader", "multi", "graders", "multi", "length", "length")
    assert field_path(location, body) == "grader.graders.multi.length"


@on_sqlite
@pytest.mark.parametrize(
    ("raw", "code", "reason"),
    [
        (b"{", "invalid_json", "at character 1"),
        (b"\xff", "invalid_json", "UTF-8"),
        (b'{"model": NaN}', "invalid_json", "NaN is not a JSON number"),
        (b'{"seed": -Infinity}', "invalid_json", "-Infinity is not a JSON number"),
        (b'{"model": "a', "invalid_json", "Unterminated string starting at character 10"),
        (b'{"model": "a\\u0000"}', "invalid_value", "model: NUL"),
        (b'{"tags": ["a", {"b": "\\u0000"}]}', "invalid_value", "tags[1].b: NUL"),
        (
            b'{"metadata": {"a": "\\ud800"}}',
            "invalid_value",
            "metadata.a: NUL characters and lone surrogates",
        ),
        ('{"model": "a"}'.encode("utf-16"), "invalid_json", "UTF-8"),
        ('{"model": "a"}'.encode("utf-16-le"), "invalid_json", "NUL"),
        (b'{"model": "\xed\xa0\x80"}', "invalid_json", "byte 12 is not UTF-8"),
        (b"[" * 200 + b"]" * 200, "invalid_json", "nested more than 100 deep"),
        (b"[" * 100_000, "invalid_json", "nested too deep"),
        (b'{"seed":' + b"9" * 6000 + b"}", "invalid_json", "a number is too large"),
        (b'{"metadata": {"a": [1.5, -1e999]}}', "invalid_json", "a number is too large"),
        (b'{"seed": 1, "seed": 2}', "invalid_json", "the key 'seed' appears twice"),
        (b'{"metadata": {"a": "1", "a": "2"}}', "invalid_json", "the key 'a' appears twice"),
    ],
    ids=[
        "cut",
        "latin-1",
        "nan",
        "infinity",
        "cut-in-text",
        "nul",
        "nul-in-list",
        "surrogate",
        "utf-16",
        "utf-16-le",
        "raw-surrogate",
        "deep",
        "endless",
        "huge",
        "beyond-float",
        "twice",
        "inner-twice",
    ],
)
def test_a_body_that_is_not_storable_json_is_refused(
    client: TestClient, raw: bytes, code: str, reason: str
) -> None:
    answer = client.post(JOBS, content=raw, headers={"content-type": "application/json"})
    error = error_of(answer)
    assert error["code"] == code
    assert reason in error["message"]


@pytest.mark.parametrize("kind", ["application/JSON", "Application/Json; charset=utf-8"])
def test_the_media_type_of_json_may_be_in_capitals(client: TestClient, kind: str) -> None:
    raw = b'{"tenant": "maths", "tenant": "\\u0000"}'
    error = error_of(client.post("/v1/keys", content=raw, headers={"content-type": kind}))
    assert "appears twice" in error["message"]
    job_with_nul = json.dumps(job(notes="\0")).encode()
    error = error_of(client.post(JOBS, content=job_with_nul, headers={"content-type": kind}))
    assert error["message"].startswith("notes: NUL characters")


@on_sqlite
def test_a_body_of_very_many_lists_is_refused_before_they_are_checked(anonymous: TestClient) -> None:
    raw = b"[" + b"[]," * 20_000 + b"[]]"
    answer = anonymous.post(JOBS, content=raw, headers={"content-type": "application/json"})
    error = error_of(answer, 413)
    assert (error["code"], error["message"]) == (
        "payload_too_large",
        "The JSON body has more than 20000 lists and objects.",
    )


@on_sqlite
@pytest.mark.parametrize("text", ["[" * 30_000, '"[' * 15_000 + "\\", "\\[\n" * 10_000 + '"' + "{" * 10_000])
def test_brackets_within_text_are_no_lists(client: TestClient, text: str) -> None:
    error = error_of(client.post(JOBS, json=job(notes=text, unknown=[])), 400)
    assert error["code"] in ("unknown_field", "invalid_value")


@on_sqlite
def test_many_values_in_a_deep_body_are_refused_with_little_memory(anonymous: TestClient) -> None:
    """They are read before the key is checked."""
    raw = b"[" * 97 + b'"\\u0000",' + b"0," * 100_000 + b"0" + b"]" * 97
    tracemalloc.start()
    try:
        answer = anonymous.post(JOBS, content=raw, headers={"content-type": "application/json"})
        assert tracemalloc.get_traced_memory()[1] < 60 * 2**20
    finally:
        tracemalloc.stop()
    assert error_of(answer)["message"].startswith("[0][0]")


@on_sqlite
@pytest.mark.parametrize("compressed", [gzip.compress(b"{}"), b"{}"], ids=["gzip", "only-said"])
def test_a_compressed_body_is_refused(client: TestClient, compressed: bytes) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    error = error_of(client.post(JOBS, content=compressed, headers=headers))
    assert error["code"] == "invalid_body"
    assert error["message"].endswith("Send the body uncompressed.")


@on_sqlite
def test_a_surrogate_pair_is_a_character_like_any_other(client: TestClient) -> None:
    raw = json.dumps(job(metadata={"smile": "😀"})).encode()
    assert b"\\ud83d" in raw
    answer = client.post(JOBS, content=raw, headers={"content-type": "application/json"})
    assert "metadata.smile" not in answer.json()["error"]["message"]


@on_sqlite
def test_a_body_without_json_content_type_is_refused(client: TestClient) -> None:
    error = error_of(client.post(JOBS, content=b"{}", headers={"content-type": "text/plain"}))
    assert error["message"] == "Send the body as application/json."


@on_sqlite
@pytest.mark.parametrize("path", ["/v1/files/a%00b", "/v1/files?after=%00", "/v1/files?%00=1"])
def test_a_nul_in_the_url_is_refused(client: TestClient, path: str) -> None:
    assert "NUL" in error_of(client.get(path))["message"]


@on_sqlite
def test_a_query_parameter_out_of_range_is_named(client: TestClient) -> None:
    assert error_of(client.get(JOBS, params={"limit": 0}))["param"] == "limit"
