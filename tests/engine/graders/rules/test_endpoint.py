import base64
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import ValidationError

from grpo_engine.contract.records import FinishReason, Sample, Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.rules.endpoint import Endpoint, EnvironmentReward
from tests.support.chat_server import EndpointServer, Recorded, Reply

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes, ok").decode()
OTHER_SECRET = base64.b64encode(b"another secret of thirty-two byte").decode()
NOW = {"Retry-After": "0"}


@pytest.fixture(autouse=True)
def _local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")


def score(url: str, text: str = "4", item: dict[str, Any] | None = None, **fields: Any) -> Score:
    grader = Endpoint.model_validate({"type": "endpoint", "url": url, **fields})
    return grader.grade(make_sample(text, num_tokens=3), item if item is not None else {"answer": "5"})


def error(found: Score) -> tuple[str, str]:
    assert found.reward is None
    return found.errors["endpoint"].code, found.errors["endpoint"].message


def write_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **endpoints: Any) -> None:
    file = tmp_path / "endpoints.json"
    file.write_text(json.dumps(endpoints))
    monkeypatch.setenv("GRPO_ENDPOINTS", str(file))


def verify(recorded: Recorded, secret: str) -> None:
    """Raises where OpenAI's client would not take it for a webhook of the secret's owner."""
    with openai.OpenAI(api_key="x") as client:
        client.webhooks.verify_signature(recorded.body.decode(), dict(recorded.headers), secret=secret)


def test_feedback_with_escaped_surrogates_can_be_stored() -> None:
    with EndpointServer(lambda request: {"score": 0.5, "feedback": "\ud800 x" * 1000}) as server:
        found = score(server.url)
    assert (found.reward, found.feedback[:6]) == (0.5, "? x? x")
    assert len(found.model_dump_json()) < 500


def test_the_server_gets_sample_and_item_and_its_score_and_feedback_count() -> None:
    with EndpointServer(lambda request: {"score": -2.5, "feedback": "too long"}) as server:
        found = score(server.url, '{"x": 1}', {"answer": 5, "more": ["ü", None]}, headers={"X-Team": "a"})
    assert found == Score(reward=-2.5, parts={"endpoint": -2.5}, feedback="too long")
    sent = server.requests[0]
    assert sent.path == "/grade"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["x-team"] == "a"
    assert sent.json["item"] == {"answer": 5, "more": ["ü", None]}
    assert sent.json["sample"]["output_text"] == '{"x": 1}'
    assert sent.json["sample"]["output_json"] == {"x": 1}
    assert sent.json["sample"]["num_tokens"] == 3
    assert sent.json["sample"]["finish_reason"] == FinishReason.STOP


def test_the_trace_id_follows_from_sample_and_item_alone() -> None:
    with EndpointServer(lambda request: 1.0) as server:
        score(server.url, "a", {"x": 1, "y": 2})
        score(server.url, "a", {"y": 2, "x": 1}, headers={"X": "other"})
        score(server.url, "b", {"x": 1, "y": 2})
        score(server.url, "a", {"x": 1, "y": 3})
    ids = [recorded.json["trace_id"] for recorded in server.requests]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert ids[0].startswith("trace_")


def test_temporary_errors_are_retried_with_the_same_trace_id() -> None:
    replies: list[Any] = [Reply(status=500, headers=NOW), Reply(status=429, headers=NOW), 0.5]
    with EndpointServer(lambda request: replies.pop(0)) as server:
        assert score(server.url).reward == 0.5
    assert len(server.requests) == 3
    assert len({recorded.json["trace_id"] for recorded in server.requests}) == 1


def test_lasting_server_errors_are_not_rewards() -> None:
    with EndpointServer(lambda request: Reply(status=503, body='{"score": 1}', headers=NOW)) as server:
        assert error(score(server.url)) == ("unresponsive_reward_error", "status 503")
    assert len(server.requests) == 4


def test_a_refused_request_is_not_repeated() -> None:
    with EndpointServer(lambda request: Reply(status=401)) as server:
        assert error(score(server.url)) == ("unresponsive_reward_error", "status 401")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the response is not JSON"),
        (b"<html>", "the response is not JSON"),
        (b"\xff\xfe", "the response is not JSON"),
        (b'{"score": NaN}', "the response is not JSON: NaN is not a JSON number"),
        (b'{"score": -Infinity}', "the response is not JSON: -Infinity is not a JSON number"),
        (b'{"score": 1e400}', "the response is not JSON: a number is too large"),
        (b'{"score": 1' + b"0" * 400 + b"}", "the score is not a finite number"),
        (b"{}", "the response has no score"),
        (b'{"reward": 1}', "the response has no score"),
        (b'{"score": null}', "the score is not a number"),
        (b'{"score": "1"}', "the score is not a number"),
        (b'{"score": true}', "the score is not a number"),
        (b'{"score": [1]}', "the score is not a number"),
        (b'{"score": 1, "feedback": {}}', "the feedback is not a string"),
        (b"null", "the score is not a number"),
        (b'[{"score": 1}]', "the score is not a number"),
    ],
)
def test_a_response_without_a_score_is_an_error(answer: bytes, message: str) -> None:
    with EndpointServer(lambda request: answer) as server:
        assert error(score(server.url)) == ("other_error", message)


def test_a_server_that_stalls_or_floods_costs_its_own_completion_only() -> None:
    def answer(request: dict[str, Any]) -> Any:
        bad = {"stall": Reply(stall=True), "flood": Reply(flood_bytes=2**30)}
        return bad.get(request["sample"]["output_text"], 1.0)

    with EndpointServer(answer) as server:
        code, message = error(score(server.url, "stall", timeout_seconds=0.3))
        assert (code, message) == ("unresponsive_reward_error", "127.0.0.1 did not answer within 0.3 s")
        assert "longer than 1048576 bytes" in error(score(server.url, "flood"))[1]
        assert score(server.url, "fine").reward == 1.0


def test_a_redirect_to_the_inside_is_not_followed() -> None:
    with EndpointServer(lambda request: 1.0) as inside:
        with EndpointServer(lambda request: Reply(status=307, headers={"Location": inside.url})) as server:
            assert error(score(server.url)) == ("other_error", "status 307: redirects are not followed")
        assert inside.requests == []


def test_a_url_is_checked_when_it_is_read_and_again_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with EndpointServer(lambda request: 1.0) as server:
        grader = Endpoint.model_validate({"type": "endpoint", "url": server.url})
        monkeypatch.delenv("GRPO_ALLOWED_HOSTS")
        found = grader.grade(make_sample("4"), {})
        assert error(found) == ("other_error", "not https")
        with pytest.raises(ValidationError, match="not https"):
            Endpoint.model_validate({"type": "endpoint", "url": server.url})
    assert server.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"url": "https://example.com/", "endpoint": "mine"},
        {"url": "https://127.0.0.2/"},
        {"url": "https://me:secret@example.com/"},
        {"url": "file:///etc/passwd"},
        {"url": "https://example.com/", "headers": {"Host": "inside"}},
        {"url": "https://example.com/", "headers": {"X": "a\r\nAuthorization: b"}},
        {"url": "https://example.com/", "headers": {f"X-{number}": "" for number in range(17)}},
        {"url": "https://example.com/", "timeout_seconds": 0},
        {"url": "https://example.com/", "timeout_seconds": 601},
        {"endpoint": "mine", "headers": {"authorization": "Bearer x"}},
        {"url": "https://example.com/", "secret": "x"},
    ],
)
def test_an_inconsistent_grader_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Endpoint.model_validate({"type": "endpoint", **fields})


def test_a_named_endpoint_gets_the_operators_key_and_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.delenv("GRPO_ALLOWED_HOSTS")  # what the operator wrote into the file needs no second word
    monkeypatch.setenv("GRPO_ENDPOINT_SECRET", OTHER_SECRET)
    with EndpointServer(lambda request: 0.5) as server:
        mine = {"url": server.url, "api_key": "canary-key", "secret": SECRET}
        write_endpoints(tmp_path, monkeypatch, mine=mine)
        found = score(None, endpoint="mine")  # type: ignore[arg-type]
    sent = server.requests[0]
    assert found.reward == 0.5
    assert sent.headers["authorization"] == "Bearer canary-key"
    assert sent.headers["webhook-id"] == sent.json["trace_id"]
    verify(sent, SECRET)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        verify(sent, OTHER_SECRET)
    assert "canary" not in caplog.text + repr(found)


def test_a_url_is_signed_with_the_common_secret_if_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with EndpointServer(lambda request: 0.5) as server:
        score(server.url)
        monkeypatch.setenv("GRPO_ENDPOINT_SECRET", SECRET)
        score(server.url)
        monkeypatch.setenv("GRPO_ENDPOINT_SECRET", "not base64!")
        found = score(server.url)
    plain, signed = server.requests
    assert "webhook-signature" not in plain.headers
    verify(signed, SECRET)
    assert error(found) == ("other_error", "a secret must be base64, with or without the prefix whsec_")


def test_an_unknown_name_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_endpoints(tmp_path, monkeypatch, mine={"url": "http://127.0.0.1:1/"})
    code, message = error(score(None, endpoint="yours"))  # type: ignore[arg-type]
    assert (code, message[:32]) == ("other_error", "there is no endpoint 'yours': th")


def test_rows_without_a_json_form_or_too_long_are_not_sent() -> None:
    with EndpointServer(lambda request: 1.0) as server:
        assert error(score(server.url, item={"x": float("nan")})) == (
            "invalid_variable_error",
            "the row has no JSON form",
        )
        assert error(score(server.url, "x" * 2**22)) == ("other_error", "more than 4194304 bytes to grade")
    assert server.requests == []


def test_concurrent_requests_get_their_own_scores() -> None:
    together = threading.Barrier(16)

    def answer(request: dict[str, Any]) -> float:
        together.wait(60)
        return float(request["sample"]["output_text"])

    with EndpointServer(answer) as server, ThreadPoolExecutor(32) as threads:
        found = list(threads.map(lambda number: score(server.url, str(number)).reward, range(32)))
    assert found == [float(number) for number in range(32)]


def test_a_dumped_grader_reads_back_equal_and_runs_in_a_thread() -> None:
    data = {"type": "endpoint", "url": "https://example.com/g", "headers": {"X": "y"}, "timeout_seconds": 5}
    grader = Endpoint.model_validate(data)
    assert Endpoint.model_validate_json(grader.model_dump_json()) == grader
    assert grader.execution == "thread"
    assert grader.problems({}) == []


def test_an_episode_without_a_reward_is_unscorable_and_the_reason_says_that_it_was_cut() -> None:
    grader = EnvironmentReward(type="environment")
    for reason, expected in (
        (FinishReason.STOP, "no reward$"),
        (FinishReason.LENGTH, "cut at max_completion"),
    ):
        with pytest.raises(UnscorableError, match=expected):
            grader.evaluate(Sample(output_text="", finish_reason=reason), {})
    assert grader.evaluate(Sample(output_text="", environment_reward=0.0), {}).reward == 0.0
