"""The HTTP application over a backend that answers on command."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from grpo_engine.chat import http_app
from grpo_engine.chat.answers import ChatFormat
from grpo_engine.chat.http_app import MAX_BODY_BYTES, create_app, only
from grpo_engine.chat.protocol import Answer, FunctionCall, Generate, Piece, Usage
from grpo_engine.contract.records import FinishReason

KEY = {"authorization": "Bearer right"}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 5}


class Backend:
    """Answers "ok" to each request once `may_answer` is set."""

    def __init__(self, *calls: FunctionCall) -> None:
        self.calls = calls
        self.requests: list[Generate] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, request: Generate) -> AsyncGenerator[Answer]:
        self.requests.append(request)
        await self.may_answer.wait()
        usage = Usage(prompt_tokens=1, completion_tokens=1)
        yield Answer(
            pieces=(Piece(index=0, text="ok", calls=self.calls, finish_reason=FinishReason.STOP),),
            usage=usage,
        )


def client_of(backend: Backend, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(only("right", backend), **options))
    return httpx.AsyncClient(transport=transport, base_url="http://engine")


def test_a_request_without_the_secret_reaches_no_backend() -> None:
    async def run() -> None:
        backend = Backend()
        async with client_of(backend) as http:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right"}):
                for method, path in (("POST", "/v1/chat/completions"), ("GET", "/health")):
                    refused = await http.request(method, path, json=BODY, headers=headers)
                    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert (await http.get("/health", headers=KEY)).status_code == 200
        assert backend.requests == []

    asyncio.run(run())


def test_an_unknown_route_is_refused_in_openai_s_form() -> None:
    async def run() -> None:
        async with client_of(Backend()) as http:
            for path, status in (("/v1/models", 404), ("/v1/chat/completions", 405)):
                refused = await http.get(path, headers=KEY)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (status, "unknown_route")
                assert error["message"] == f"Unknown route: GET {path}."

    asyncio.run(run())


def test_a_key_selects_its_backend() -> None:
    async def run() -> None:
        backends = {"one": Backend(), "two": Backend()}
        transport = httpx.ASGITransport(create_app(backends.get))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
            headers = {"authorization": "Bearer two"}
            answer = await http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
        assert (len(backends["one"].requests), backends["two"].requests[0].seed) == (0, 5)

    asyncio.run(run())


def test_a_call_is_an_answer_of_openai_s_form_as_a_whole_and_in_a_stream() -> None:
    async def run() -> None:
        backend = Backend(FunctionCall(id="call12345", name="add", arguments='{"a": 1}'))
        function = {"name": "add", "arguments": '{"a": 1}'}
        call = {"id": "call12345", "type": "function", "function": function}
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        answer = {"role": "tool", "tool_call_id": "call12345", "content": "2"}
        body = {**BODY, "messages": [*BODY["messages"], turn, answer], "tools": [tool]}
        async with client_of(backend) as http:
            whole = (await http.post("/v1/chat/completions", json=body, headers=KEY)).json()["choices"][0]
            assert whole["finish_reason"] == "tool_calls"
            assert whole["message"] == {
                "role": "assistant",
                "content": "ok",
                "refusal": None,
                "tool_calls": [call],
            }
            sent = await http.post("/v1/chat/completions", json={**body, "stream": True}, headers=KEY)
            chunks = [json.loads(line[6:]) for line in sent.text.split("\n\n") if line.startswith("data: {")]
            shown = [chunk["choices"][0] for chunk in chunks]
            assert shown[2]["delta"] == {"tool_calls": [{"index": 0, **call}]}
            assert shown[3]["finish_reason"] == "tool_calls"
        (first, _) = backend.requests
        assert first.tools == (tool,)
        assert first.messages is not None
        assert first.messages[1]["tool_calls"] == [call]

    asyncio.run(run())


def test_a_cut_answer_with_calls_says_that_it_was_cut() -> None:
    call = FunctionCall(id="call12345", name="add", arguments='{"a": 1}')
    cut = Piece(index=0, calls=(call,), finish_reason=FinishReason.LENGTH)
    form = ChatFormat("chatcmpl-1", 0, "m", 1, includes_usage=False)
    whole = form.whole([cut], Usage(prompt_tokens=1, completion_tokens=1))
    assert whole.choices[0].finish_reason == "length"
    assert form.chunks(cut)[-1]["choices"][0]["finish_reason"] == "length"


def calling(function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": NaN}', "[" * 300 + "]" * 300, "{"])
def test_arguments_that_are_not_strict_json_stay_text_or_are_refused(arguments: str) -> None:
    async def run() -> None:
        backend = Backend()
        async with client_of(backend) as http:
            body = {**BODY, "messages": [calling({"name": "add", "arguments": arguments})]}
            assert (await http.post("/v1/chat/completions", json=body, headers=KEY)).status_code == 200
            item = {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments}
            refused = await http.post("/v1/responses", json={"model": "m", "input": [item]}, headers=KEY)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.0")
        (request,) = backend.requests
        assert Generate.model_validate_json(request.model_dump_json()) == request
        assert request.messages == (calling({"name": "add", "arguments": arguments}),)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"content": b"x" * (MAX_BODY_BYTES + 1)}, 413, None),
        ({"content": b"{"}, 400, None),
        ({"json": {**BODY, "top_p": 0.5}}, 400, "top_p"),
        ({"json": {**BODY, "max_tokens": 2**21}}, 400, "max_tokens"),
        ({"json": {**BODY, "messages": [calling("x")]}}, 400, "messages.0.tool_calls"),
    ],
)
def test_a_wrong_request_is_an_error_of_openai_s_form(given: Any, status: int, param: str | None) -> None:
    async def run() -> httpx.Response:
        async with client_of(Backend()) as http:
            return await http.post("/v1/chat/completions", headers=KEY, **given)

    refused = asyncio.run(run())
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")


def test_a_refused_option_is_explained_without_pydantic_s_prefix() -> None:
    async def run() -> None:
        async with client_of(Backend()) as http:
            refused = await http.post("/v1/chat/completions", json={**BODY, "top_logprobs": 5}, headers=KEY)
        assert refused.json()["error"]["message"].startswith("This sampler draws from the model's whole")

    asyncio.run(run())


def test_a_request_beyond_the_limit_waits_and_is_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "WAIT_SECONDS", 0.05)

    async def run() -> None:
        backend = Backend()
        backend.may_answer.clear()
        async with client_of(backend, max_open=1) as http:
            first = asyncio.create_task(http.post("/v1/chat/completions", json=BODY, headers=KEY))
            while not backend.requests:
                await asyncio.sleep(0)
            second = await http.post("/v1/chat/completions", json=BODY, headers=KEY)
            assert (second.status_code, second.json()["error"]["code"]) == (503, "generation_timeout")
            backend.may_answer.set()
            assert (await first).status_code == 200
            assert (await http.post("/v1/chat/completions", json=BODY, headers=KEY)).status_code == 200

    asyncio.run(run())
