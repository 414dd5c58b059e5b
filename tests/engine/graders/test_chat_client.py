"""The chat client and the operator's file of endpoints: keys stay where they are."""

import logging
from pathlib import Path

import pytest
from openai import OpenAI

from grpo_engine.outbound import chat_client
from grpo_engine.outbound.operator_endpoints import EndpointError, find_endpoint, load_endpoints
from tests.engine.graders.judges import KEY, NOW, Judge, error, score
from tests.support.chat_server import Reply


def test_openais_own_client_understands_the_scripted_server(judge: Judge) -> None:
    server = judge(lambda request: request["messages"][-1]["content"].upper())
    with OpenAI(base_url=server.url, api_key="k") as client:
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello you"}]
        )
    assert answer.choices[0].message.content == "HELLO YOU"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 2)


def test_the_key_is_in_no_error_log_repr_or_dump(
    judge: Judge, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for status in (200, 400, 401, 403, 500):
        judge(
            lambda request, status=status: Reply(status=status, body=f"your key {KEY}".encode(), headers=NOW)
        )
        found = score(str(status))
        shown += [repr(found), found.model_dump_json()]
    endpoint = find_endpoint("default")
    client = chat_client.ChatClient("default", "judge")
    shown += [repr(endpoint), str(endpoint), endpoint.model_dump_json(), repr(client), repr(vars(client))]
    shown += [repr(load_endpoints()), caplog.text, *capfd.readouterr()]
    assert caplog.text != ""
    assert not [text for text in shown if KEY in text or KEY[:12] in text]


@pytest.mark.parametrize(
    "content",
    [
        f'{{"default": {{"url": "https://x.example", "api_key": "{KEY}", "extra": 1}}}}',
        f'{{"default": {{"url": "https://x.example", "api_key": "{KEY} "}}}}',
        f'{{"default": {{"url": "ftp://x.example", "api_key": "{KEY}"}}}}',
        f'{{"default": {{"url": "https://{KEY}:{KEY}@x.example"}}}}',
        f'{{"default": {{"url": "https://x.example", "secret": "{KEY}!"}}}}',
        f'{{"default": {{"url": "https://x.example", "api_key": "{KEY}"',
        f'["{KEY}"]',
        "",
    ],
)
def test_an_invalid_file_is_reported_without_its_content(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endpoints.json").write_text(content)
    monkeypatch.setenv("GRPO_ENDPOINTS", str(tmp_path / "endpoints.json"))
    code, message = error(score())
    assert code == "model_grader_server_error"
    assert message.startswith("GRPO_ENDPOINTS ")
    assert KEY not in message


def test_a_missing_file_is_reported_and_a_changed_one_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "endpoints.json"
    monkeypatch.setenv("GRPO_ENDPOINTS", str(file))
    with pytest.raises(EndpointError, match="cannot be read: No such file or directory"):
        load_endpoints()
    file.write_text('{"a": {"url": "http://127.0.0.1:1/v1"}}')
    assert list(load_endpoints()) == ["a"]
    file.write_text('{"other": {"url": "http://127.0.0.1:1/v1"}}')
    assert list(load_endpoints()) == ["other"]


def test_an_option_without_a_value_is_not_sent(judge: Judge) -> None:
    server = judge(lambda request: "hello")
    client = chat_client.ChatClient("default", "m")
    answer = client.complete([{"role": "user", "content": "x"}], temperature=None, seed=3)
    assert answer == chat_client.ChatAnswer(
        text="hello",
        usage=chat_client.ChatUsage(input_tokens=1, output_tokens=1),
        refusal=None,
        finish_reason="stop",
    )
    assert server.requests[0].json == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "seed": 3,
    }


def test_a_server_error_has_its_status(judge: Judge) -> None:
    judge(lambda request: Reply(status=404))
    with pytest.raises(chat_client.ChatServerError) as caught:
        chat_client.ChatClient("default", "m").complete([{"role": "user", "content": "x"}])
    assert caught.value.status == 404
