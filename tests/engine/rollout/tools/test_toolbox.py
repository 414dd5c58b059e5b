"""Tools at work: a real sandbox, a real server; every failure is an answer, in bounded time and size."""

import threading
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_engine.config.job import ReinforcementMethod
from grpo_engine.config.tools import HttpTool, PythonTool, function_schemas
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.toolbox import Toolbox, ToolResult, http_request, shortened, within
from tests.support.chat_server import Reply, ScriptedServer

PYTHON = PythonTool(type="python", timeout_seconds=60)


def ask(tool: PythonTool | HttpTool | None, call: ToolCall, item: Any = None, key: str = "1") -> ToolResult:
    with Toolbox([tool] if tool else []).open() as counter:
        return counter.submit(call, item or {}, key).result()


def python(code: Any, tool: PythonTool = PYTHON) -> ToolResult:
    return ask(tool, ToolCall("python", {"code": code}))


def test_a_call_finds_nothing_of_another_and_a_killed_one_spoils_none() -> None:
    calls = [
        (
            "python",
            "import math, sys; math.e = 3; sys.modules['json'] = None; open('/tmp/left', 'w').write('x')",
        ),
        ("impatient", "while True: pass"),
        ("python", "import math, os, json; math.e, os.listdir('/tmp')"),
        ("python", "import os; os._exit(0)"),
        ("python", "6 * 7"),
    ]
    impatient = PythonTool(type="python", name="impatient", timeout_seconds=0.5)
    with Toolbox([PYTHON, impatient]).open() as counter:
        answers = [counter.submit(ToolCall(tool, {"code": code}), {}, "1").result() for tool, code in calls]
    assert [answer.failed for answer in answers] == [False, True, False, True, False]
    assert answers[2].text == "(2.718281828459045, [])"
    assert answers[4].text == "42"


def test_python_returns_the_output_and_the_value_of_the_last_line() -> None:
    assert python("print('hello')\n6 * 7") == ToolResult("hello\n42")
    assert python("x = 1") == ToolResult("(no output)")


def test_a_traceback_is_an_answer() -> None:
    answer = python("print('before')\n1 / 0")
    assert answer.failed
    assert answer.text.startswith("before\n")
    assert answer.text.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_syntax_error_shows_only_the_code_s_own_line() -> None:
    answer = python("x = 1\nprint((x)")
    assert answer.text.splitlines()[:2] == ['File "<code>", line 2', "    print((x)"]
    assert answer.text.endswith("SyntaxError: '(' was never closed")


def test_code_that_does_not_end_is_out_of_time() -> None:
    answer = python("while True: pass", PythonTool(type="python", timeout_seconds=0.5))
    assert answer == ToolResult("Error: out of time after 0.5 s", failed=True)


def test_a_flood_of_output_is_cut_to_the_tools_size() -> None:
    answer = python("print('a' * 100_000)\nprint('z')", PythonTool(type="python", max_output_chars=100))
    assert len(answer.text) <= 100
    assert answer.text.startswith("aaa")
    assert answer.text.endswith("z")
    assert "cut from 100002 characters" in answer.text


def test_python_cannot_reach_the_host() -> None:
    assert python("import socket; socket.create_connection(('127.0.0.1', 80), 1)").failed
    assert python("open('/etc/shadow').read()").failed


def test_code_that_is_not_text_is_refused() -> None:
    assert python(3) == ToolResult("Error: the argument code must be a string", failed=True)


def test_unknown_tools_and_unreadable_calls_are_answered() -> None:
    assert ask(PYTHON, ToolCall("rm")) == ToolResult("Error: unknown tool 'rm'; known: python", failed=True)
    assert ask(None, ToolCall("", error="the call is not JSON")).text == "Error: the call is not JSON"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    with ScriptedServer(lambda request: Reply(body="7 °C")) as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        yield server


def http(server: ScriptedServer, **more: Any) -> HttpTool:
    return HttpTool(type="http", name="weather", url=server.url, **{"timeout_seconds": 60, **more})


CALL = ToolCall("weather", {"city": "Bonn"})


def test_an_http_request_has_arguments_item_and_trace_id(server: ScriptedServer) -> None:
    assert ask(http(server), CALL, {"row": 3}, "7/1/0") == ToolResult("7 °C")
    (request,) = server.requests
    trace_id = request.json.pop("trace_id")
    asked = {key: value for key, value in request.json.items() if key != "trace_id"}
    assert asked == {"name": "weather", "arguments": {"city": "Bonn"}, "item": {"row": 3}}
    assert trace_id.startswith("trace_")
    assert "webhook-signature" not in request.headers


def test_a_trace_id_is_repeated_for_the_same_call_only() -> None:
    first = http_request(CALL, {"row": 3}, "7/1/0")
    assert first == http_request(CALL, {"row": 3}, "7/1/0")
    assert first != http_request(CALL, {"row": 3}, "7/1/1")


def test_a_call_is_signed_if_a_secret_is_set(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ENDPOINT_SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
    ask(http(server), CALL, {}, "1")
    assert server.requests[0].headers["webhook-signature"].startswith("v1,")
    assert server.requests[0].headers["webhook-id"] == server.requests[0].json["trace_id"]


def test_the_tools_own_headers_are_sent(server: ScriptedServer) -> None:
    ask(http(server, headers={"Authorization": "Bearer k"}), CALL)
    assert server.requests[0].headers["authorization"] == "Bearer k"
    with pytest.raises(ValidationError, match="reserved"):
        http(server, headers={"Content-Type": "text/plain"})


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(status=500, body="out of order"), "Error: status 500\nout of order"),
        (Reply(status=302, headers={"Location": "https://example.com"}), "Error: status 302"),
        (Reply(drop=True), "Error: 127.0.0.1: Server disconnected without sending a response."),
        (Reply(flood_bytes=2**21), "Error: the response is longer than 1048576 bytes"),
        (Reply(body=b"\xff\xfe7"), "\ufffd\ufffd7"),
        (Reply(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}), "Error: the answer is compressed"),
    ],
)
def test_whatever_a_server_does_is_an_answer(server: ScriptedServer, reply: Reply, text: str) -> None:
    server.answer = lambda request: reply
    assert ask(http(server), CALL, {}, "1").text == text


def test_a_server_that_does_not_answer_is_out_of_time(server: ScriptedServer) -> None:
    server.answer = lambda request: Reply(stall=True)
    answer = ask(http(server, timeout_seconds=0.3), CALL, {}, "1")
    assert answer == ToolResult("Error: 127.0.0.1 did not answer within 0.3 s", failed=True)


def test_an_inner_address_is_refused_at_submit() -> None:
    with pytest.raises(ValidationError, match="url"):
        HttpTool(type="http", name="weather", url="http://127.0.0.1/")


def test_a_host_that_is_no_longer_allowed_gets_no_request(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = http(server)
    monkeypatch.delenv("GRPO_ALLOWED_HOSTS")
    assert ask(tool, CALL, {}, "1").failed
    assert server.requests == []


def test_a_tool_that_hangs_costs_its_time_only() -> None:
    release = threading.Event()

    def hang() -> ToolResult:
        release.wait()
        return ToolResult("late")

    assert within(0.05, hang) == ToolResult("Error: no answer within 0.05 s", failed=True)
    release.set()


def test_calls_run_side_by_side(server: ScriptedServer) -> None:
    together = threading.Barrier(4)

    def meet(request: Any) -> str:
        together.wait(60)
        return "met"

    server.answer = meet
    with Toolbox([http(server)]).open() as counter:
        futures = [counter.submit(CALL, {}, str(n)) for n in range(4)]
        assert [future.result() for future in futures] == [ToolResult("met")] * 4


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcdef", 3) == "abc"
    text = shortened("a" * 500 + "z" * 500, 101)
    assert text == "a" * 33 + "\n[... cut from 1000 characters ...]\n" + "z" * 32


def test_schemas_are_openais_and_names_must_differ() -> None:
    python_tool, other = PYTHON, PythonTool(type="python", name="sandbox")
    (first, second) = function_schemas([python_tool, other])
    assert first["function"]["name"] == "python"
    assert first["function"]["parameters"]["required"] == ["code"]
    assert second["type"] == "function"
    grader = {"type": "string_check", "operation": "eq", "input": "a", "reference": "a"}
    with pytest.raises(ValidationError, match="tools need different names"):
        ReinforcementMethod.model_validate({"grader": grader, "tools": [PYTHON, PYTHON]})
