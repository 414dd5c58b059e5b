"""`/v1/chat/completions` and `/v1/completions` with OpenAI's unmodified client, and what they refuse."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai import OpenAI

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.platform import feed
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from service.web.auth import create_key, revoke_key
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    add_artifact,
    add_checkpoint,
    add_job,
    expanded,
    lessons_method,
    make_model,
)
from tests.service.serving.answering import answering, num_served
from tests.support.servers import wait_until
from worker.attempt.worker import Worker

HELLO: Any = [{"role": "user", "content": "hello there"}]


@pytest.fixture
def answered(settings: Settings) -> Iterator[Worker]:
    make_model(settings.home)
    with answering(settings) as worker:
        yield worker


def tune(settings: Settings, database: Database, archive: bytes, tenant: str = "tenant-a") -> str:
    """Name of a fine-tuned model with one checkpoint."""
    job_id = add_job(database, JobState.SUCCEEDED, tenant=tenant)
    add_artifact(settings, database, job_id, "adapter", archive)
    add_checkpoint(settings, database, job_id, 5, archive)
    name = names.fine_tuned_model("tiny", tenant, None, job_id)
    with database.transaction() as session:
        session.get_one(Job, job_id).fine_tuned_model = name
    return name


@pytest.fixture
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A stored adapter."""
    from service.platform.archives import pack

    folder = tmp_path_factory.mktemp("adapter")
    (folder / "adapter_config.json").write_text("{}")
    packed = folder.with_suffix(".tar.gz")
    pack(folder, packed)
    return packed.read_bytes()


@pytest.mark.usefixtures("answered")
def test_the_unmodified_client_chats_whole_and_streamed(openai_client: OpenAI) -> None:
    whole = openai_client.chat.completions.create(model="tiny", messages=HELLO, n=2, user="u", store=False)
    assert [one.message.content for one in whole.choices] == ["Base: hello there"] * 2
    assert [one.finish_reason for one in whole.choices] == ["stop", "stop"]
    assert whole.usage is not None
    counted = (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens)
    assert counted == (7, 6, 13)
    options: Any = {"include_usage": True}
    stream = openai_client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, max_completion_tokens=2, stream_options=options
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == "Base: hello"
    assert choices[-1].finish_reason == "length"
    assert [chunk.usage and chunk.usage.total_tokens for chunk in chunks[-2:]] == [None, 9]


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_the_unmodified_client_completes_texts(openai_client: OpenAI) -> None:
    whole = openai_client.completions.create(model="tiny", prompt="once upon", max_tokens=2, seed=-1)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("Base: once", "length")
    stream = openai_client.completions.create(model="tiny", prompt=["once upon"], stream=True)
    texts = [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in stream]
    assert texts == [("Base:", None), (" once", None), (" upon", "stop")]


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_log_probabilities_are_those_of_the_sampled_tokens(openai_client: OpenAI) -> None:
    whole = openai_client.chat.completions.create(model="tiny", messages=HELLO, logprobs=True)
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content or []
    assert [(one.token, one.logprob, bytes(one.bytes or [])) for one in content] == [
        ("Base:", -0.5, b"Base:"),
        (" hello", -0.5, b" hello"),
        (" there", -0.5, b" there"),
    ]


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_a_fine_tuned_model_and_its_checkpoint_answer_and_are_their_tenants_only(
    openai_client: OpenAI, server_url: str, other_api_key: str, settings: Settings, database: Database,
    archive: bytes,
) -> None:  # fmt: skip
    name = tune(settings, database, archive)
    for model in (name, names.checkpoint_model(name, 5)):
        whole = openai_client.chat.completions.create(model=model, messages=HELLO)
        assert whole.choices[0].message.content == "Adapter: hello there!"
        with OpenAI(base_url=f"{server_url}/v1", api_key=other_api_key, max_retries=0) as other:
            with pytest.raises(openai.NotFoundError) as refused:
                other.chat.completions.create(model=model, messages=HELLO)
            assert refused.value.code == "model_not_found"


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_a_chained_model_answers_on_stored_whole_weights_quantised_as_in_training(
    openai_client: OpenAI, settings: Settings, database: Database, archive: bytes
) -> None:
    whole = tune(settings, database, archive)
    chained = tune(settings, database, archive)
    with database.transaction() as session:
        session.get_one(Job, names.job_of(whole)).method = expanded(lora="full")
        job = session.get_one(Job, names.job_of(chained))
        job.model, job.method = whole, expanded(quantization="nf4")
    shutil.rmtree(settings.models_dir / "tiny")
    for model, reply in ((whole, "Base: hello there"), (chained, "Adapter on nf4: hello there!")):
        answer = openai_client.chat.completions.create(model=model, messages=HELLO)
        assert answer.choices[0].message.content == reply


@on_sqlite
def test_a_model_without_weights_of_its_own_or_without_its_base_is_refused(
    client: TestClient, settings: Settings, database: Database, archive: bytes
) -> None:
    orphan = tune(settings, database, archive)  # there is no model in the catalogue
    lessons = tune(settings, database, archive)
    with database.transaction() as session:
        job_id = names.job_of(lessons)
        session.get_one(Job, job_id).method = lessons_method()
    errors = {
        name: client.post("/v1/chat/completions", json={"model": name, "messages": HELLO}).json()["error"]
        for name in (orphan, lessons)
    }
    assert (errors[orphan]["code"], errors[lessons]["code"]) == ("model_not_found", "model_without_weights")


@on_sqlite
@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_beyond_the_context_is_a_400_even_for_a_stream(openai_client: OpenAI, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": "refuse this"}]
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.chat.completions.create(model="tiny", messages=messages, stream=stream)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


@on_sqlite
@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("top_p", 0.9, "top_p"),
        ("top_p", True, "top_p"),
        ("frequency_penalty", 0.5, "frequency_penalty"),
        ("logit_bias", {"1": 1}, "logit_bias"),
        ("tools", [{"type": "function"}], "tools[0]"),
        ("tool_choice", "required", "tool_choice"),
        ("response_format", {"type": "json_object"}, "response_format"),
        ("top_logprobs", 2, "top_logprobs"),
        ("reasoning_effort", "high", "reasoning_effort"),
        ("temperature", 3, "temperature"),
        ("n", 9, "n"),
        ("stop", ["a"] * 5, "stop"),
        ("max_tokens", 0, "max_tokens"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("unheard_of", 1, "unheard_of"),
        ("messages", [], "messages"),
        ("messages", [{"role": "user"}], "messages[0].content"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].type",
        ),
    ],
)
def test_unsupported_options_are_refused_by_name(
    client: TestClient, field: str, value: Any, param: str
) -> None:
    body = {"model": "tiny", "messages": HELLO, field: value}
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_options_without_effect_are_accepted(client: TestClient) -> None:
    nothing = {"top_p": 1.0, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "tools": []}
    nothing |= {"response_format": {"type": "text"}, "tool_choice": "auto", "metadata": {"a": "b"}}
    nothing |= {"service_tier": "auto", "top_logprobs": None, "stream": False, "logprobs": False}
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": parts, **nothing})
    assert answer.status_code == 200, answer.text


@on_sqlite
def test_without_a_worker_the_answer_is_a_503_at_once(client: TestClient, settings: Settings) -> None:
    make_model(settings.home)
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_chat_worker")
    assert answer.headers["x-should-retry"] == "false"


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_a_tenant_has_at_most_the_allowed_chat_requests(
    client: TestClient, other_client: TestClient, app: FastAPI, settings: Settings
) -> None:
    body = {"model": "tiny", "messages": HELLO}
    with ExitStack() as others:
        for _ in range(settings.max_chats):
            others.enter_context(app.state.chat_limit.slot("tenant-a"))
        answer = client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded")
        assert answer.headers["retry-after"] == "5"
        assert other_client.post("/v1/chat/completions", json=body).status_code == 200
    assert client.post("/v1/chat/completions", json=body).status_code == 200


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_a_stream_ends_with_done_and_is_not_cached(server_url: str, api_key: str) -> None:
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    headers = {"authorization": f"Bearer {api_key}"}
    with httpx.stream(
        "POST", f"{server_url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_a_revoked_key_ends_its_own_answers_only(
    openai_client: OpenAI, server_url: str, api_key: str, app: FastAPI, database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(feed, "KEY_SECONDS", 0.1)
    hang: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hang"}]}
    with database.transaction() as session:
        kept = create_key(session, "tenant-a")
    with OpenAI(base_url=f"{server_url}/v1", api_key=kept, max_retries=0) as other:
        lost, open_ = (each.chat.completions.create(**hang, stream=True) for each in (openai_client, other))
        for stream in (lost, open_):
            assert any(chunk.choices[0].delta.content == "Base:" for chunk in stream)
        with database.transaction() as session:
            assert revoke_key(session, api_key.split("_")[1])
        with pytest.raises(openai.APIError) as ended:
            list(lost)
        assert ended.value.code == "invalid_api_key"
        wait_until(lambda: app.state.chat_feed.num_subscribers == 1, what="the other answer continues alone")
        open_.close()


@on_sqlite
@pytest.mark.usefixtures("answered")
def test_an_answer_that_is_not_streamed_is_a_401_when_its_key_is_revoked(
    openai_client: OpenAI, api_key: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "KEY_SECONDS", 0.1)
    revoke = threading.Thread(target=_revoke_when_asked, args=(database, api_key))
    revoke.start()
    with pytest.raises(openai.AuthenticationError) as ended:
        openai_client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hang"}])
    revoke.join()
    assert ended.value.code == "invalid_api_key"


def _revoke_when_asked(database: Database, api_key: str) -> None:
    wait_until(lambda: num_served(database) == 1, what="the model answers")
    with database.transaction() as session:
        revoke_key(session, api_key.split("_")[1])
