"""`graders/run` with rules that run code or call servers: bounded, in OpenAI's terms, blocking no others."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI

from service.graders import service
from service.settings import Settings
from service.web.limits import ConcurrencyLimit
from tests.conftest import on_sqlite
from tests.service.job_samples import make_model
from tests.support.chat_server import Answer, ChatServer, EndpointServer, Reply

pytestmark = on_sqlite  # one database is enough here: graders keep nothing

PREFIX = "/v1/fine_tuning/alpha/graders"
JUDGE = {
    "type": "score_model",
    "name": "judge",
    "model": "large",
    "input": [{"role": "user", "content": "Rate {{sample.output_text}}"}],
    "cache": False,
}


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ChatServer]]:
    """Starts a scripted judge as the operator's endpoint `default`."""
    started: list[ChatServer] = []

    def start(answer: Callable[[dict[str, Any]], Answer]) -> ChatServer:
        server = ChatServer(answer)
        started.append(server.__enter__())
        (tmp_path / "endpoints.json").write_text(json.dumps({"default": {"url": server.url}}))
        monkeypatch.setenv("GRPO_ENDPOINTS", str(tmp_path / "endpoints.json"))
        return server

    yield start
    for server in started:
        server.__exit__(None, None, None)


def python(body: str) -> dict[str, Any]:
    return {"type": "python", "name": "own", "source": f"def grade(sample, item):\n    {body}"}


def run(client: TestClient, grader: Any, text: str = "4", item: Any = None) -> dict[str, Any]:
    answer = client.post(f"{PREFIX}/run", json={"grader": grader, "model_sample": text, "item": item})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_python_grader_runs_in_the_sandbox(client: TestClient) -> None:
    body = run(client, python("return float(sample['output_text'] == item['answer'])"), "4", {"answer": "4"})
    assert (body["reward"], body["scorable"], body["metadata"]["type"]) == (1.0, True, "python")


def test_an_exception_of_a_python_grader_is_an_error_with_its_details(client: TestClient) -> None:
    body = run(client, python("return 1 / 0"))
    errors = body["metadata"]["errors"]
    assert (body["reward"], body["scorable"]) == (0.0, False)
    assert errors["python_grader_runtime_error"] is True
    assert "ZeroDivisionError" in errors["python_grader_runtime_error_details"]


def test_the_prints_of_a_python_grader_are_returned_without_secrets(client: TestClient) -> None:
    printing = python(r"print('\x1b[31mseen', item['answer'], 'api_key=private'); return 1 / 0")
    assert run(client, printing, "4", {"answer": "4"})["printed"] == {"own": "\ufffd[31mseen 4 api_key=***"}
    assert run(client, python("return 1"))["printed"] == {}


def test_code_and_math_are_judged_apart(client: TestClient) -> None:
    tests = {"type": "code_tests", "tests": "{{item.tests}}"}
    item = {"tests": [{"call": "f", "args": [2], "expected": 4}, {"call": "f", "args": [3], "expected": 6}]}
    assert run(client, tests, "def f(n): return n * n", item)["reward"] == 0.5
    answer = {"type": "math", "reference": "$\\frac{1}{2}$"}
    both = {"type": "multi", "graders": {"code": tests, "math": answer}, "calculate_output": "code + math"}
    assert run(client, both, "$0.5$", item)["sub_rewards"] == {"code": 0.0, "math": 1.0}


def test_a_run_names_the_failing_test_and_what_it_got(client: TestClient) -> None:
    tests = {"type": "code_tests", "tests": "{{item.tests}}", "timeout_seconds": 3}
    item = {"tests": [{"call": "f", "args": [n], "expected": 4} for n in (2, 3, 0)]}
    body = run(client, tests, "import time\ndef f(n):\n    if not n: time.sleep(60)\n    return n * n", item)
    assert body["feedback"] == "test 2 of 3: f(3) should give 4, got 9"
    right, wrong, loops = body["explanations"]["code_tests"]
    assert (right["label"], right["passed"]) == ("test 1 of 3: f(2)", True)
    assert (wrong["passed"], wrong["got"], wrong["expected"]) == (False, "9", "4")
    assert (loops["passed"], loops["detail"]) == (False, "no result within 3 s: the code may loop")


def test_a_run_shows_the_steps_of_a_process_with_their_rewards(client: TestClient) -> None:
    inner = {"type": "format", "pattern": "[0-9]", "match": "search"}
    body = run(client, {"type": "process", "name": "steps", "grader": inner}, "4 apples\nso four")
    found = [(one["label"], one["got"], one["score"]) for one in body["explanations"]["steps"]]
    assert found == [("step 1 of 2", "4 apples", 1.0), ("step 2 of 2", "so four", 0.0)]


def test_a_grader_that_hangs_ends_at_the_deadline(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DEADLINE_SECONDS", 1.0)
    started = time.monotonic()
    body = run(client, python("while True: pass"))
    assert time.monotonic() - started < 60
    assert body["metadata"]["errors"]["unresponsive_reward_error"] is True


def test_a_judge_answers_its_score_its_model_and_its_tokens(
    client: TestClient, judge: Callable[..., ChatServer]
) -> None:
    server = judge(lambda _: {"score": 0.25, "feedback": "Too short."})
    body = run(client, JUDGE, "four")
    assert (body["reward"], body["metadata"]["sampled_model_name"]) == (0.25, "large")
    usage = body["model_grader_token_usage_per_model"]["large"]
    assert (usage["calls"], usage["input_tokens"], usage["output_tokens"]) == (1, 2, 5)
    assert body["metadata"]["token_usage"] == 7
    assert server.requests[0].json["messages"] == [{"role": "user", "content": "Rate four"}]


@pytest.mark.parametrize(
    ("answer", "flag"),
    [
        ("no number", "model_grader_parse_error"),
        (Reply(status=400, body={"error": {"message": "no"}}), "model_grader_server_error"),
    ],
)
def test_errors_of_a_judge_have_openais_names(
    client: TestClient, judge: Callable[..., ChatServer], answer: Answer, flag: str
) -> None:
    judge(lambda _: answer)
    body = run(client, JUDGE)
    assert body["metadata"]["errors"][flag] is True
    assert body["scorable"] is False


def test_a_users_endpoint_is_called(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with EndpointServer(lambda request: float(request["sample"]["output_text"] == "4")) as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        assert run(client, {"type": "endpoint", "url": server.url})["reward"] == 1.0


def test_a_grader_that_the_deployment_does_not_support_is_refused_by_field(
    client: TestClient, settings: Settings
) -> None:
    make_model(settings.home)
    given = {"type": "reward_model", "model": "tiny", "path": "/etc"}
    for grader, param, code in (
        ({"type": "endpoint", "endpoint": "absent"}, "grader.endpoint", "endpoint_not_found"),
        ({"type": "reward_model", "model": "absent"}, "grader.model", "model_not_found"),
        (given, "grader.path", "invalid_value"),
    ):
        for path, more in (("validate", {}), ("run", {"model_sample": ""})):
            answer = client.post(f"{PREFIX}/{path}", json={"grader": grader, **more})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_while_graders_run_others_are_answered_and_too_many_are_refused(
    client: TestClient, other_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_run_limit", ConcurrencyLimit("grader runs", per_tenant=1, overall=2))
    asked, answer_now = threading.Event(), threading.Event()

    def wait(_: dict[str, Any]) -> float:
        asked.set()
        answer_now.wait(30)
        return 1.0

    with EndpointServer(wait) as server, ThreadPoolExecutor(1) as threads:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        slow = threads.submit(run, client, {"type": "endpoint", "url": server.url})
        assert asked.wait(30)
        plain = {"type": "numeric", "reference": "4"}
        assert run(client, plain)["reward"] == 1.0
        body = {"grader": python("return 1.0"), "model_sample": ""}
        refused = client.post(f"{PREFIX}/run", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        message = "Too many grader runs (limit: 1 per tenant, 2 overall). Retry in 5 s."
        assert refused.json()["error"]["message"] == message
        assert other_client.post(f"{PREFIX}/run", json=body).status_code == 200
        answer_now.set()
        assert slow.result(30)["reward"] == 1.0


def test_openais_client_reads_a_judge_and_a_python_grader(
    openai_client: OpenAI, judge: Callable[..., ChatServer]
) -> None:
    judge(lambda _: "0.5")
    graders: Any = openai_client.fine_tuning.alpha.graders
    answer = graders.run(grader=JUDGE, model_sample="four")
    assert (answer.reward, answer.metadata.sampled_model_name) == (0.5, "large")
    failed = graders.run(grader=python("raise ValueError('no')"), model_sample="four")
    assert failed.metadata.errors.python_grader_runtime_error is True
    assert "ValueError: no" in failed.metadata.errors.python_grader_runtime_error_details
