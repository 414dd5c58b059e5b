"""Runs tool calls: Python in the sandbox, HTTP through the guarded way out, several at a time.

Boundary: a call goes in, a text for the model comes out, in bounded time and size. Whatever goes wrong in a
call is its answer and costs that call only.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, assert_never

from pydantic import SecretStr

from grpo_engine.config.tools import HttpTool, PythonTool
from grpo_engine.contract.errors import ConfigError
from grpo_engine.graders.feedback import storable
from grpo_engine.graders.untrusted_json import parse_json
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.signing import signature_headers
from grpo_engine.outbound.web import NoAnswer, post
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.interpreter import Interpreters
from grpo_engine.sandbox import SandboxUnavailable, untrusted_interpreter

CALLS_AT_A_TIME = 8
OVERTIME_SECONDS = 5.0
"""Beyond a tool's own time limit: what starting it and looking its name up may take."""
MAX_REQUEST_BYTES = 2**20
NO_OUTPUT = "(no output)"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model reads of its call."""

    text: str
    failed: bool = False
    """The call could not be read or run, or its tool said that it failed."""


class Toolbox:
    """A job's tools by name. Raises ConfigError where one of them cannot work on this machine."""

    def __init__(self, tools: Sequence[PythonTool | HttpTool]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._python = any(isinstance(tool, PythonTool) for tool in tools)
        if self._python:
            _require_sandbox()

    @contextmanager
    def open(self) -> Iterator[Counter]:
        """Where calls are handed in; when the block ends none is waiting or running."""
        pool = ThreadPoolExecutor(CALLS_AT_A_TIME, thread_name_prefix="tool")
        interpreters = Interpreters(CALLS_AT_A_TIME if self._python else 0)
        try:
            yield Counter(self.tools, pool, interpreters)
        finally:
            pool.shutdown(cancel_futures=True)
            interpreters.close()


class Counter:
    """Takes calls while the toolbox is open."""

    def __init__(
        self,
        tools: Mapping[str, PythonTool | HttpTool],
        pool: ThreadPoolExecutor,
        interpreters: Interpreters,
    ) -> None:
        self._tools = tools
        self._pool = pool
        self._interpreters = interpreters

    def submit(self, call: ToolCall, item: Mapping[str, Any], key: str) -> Future[ToolResult]:
        """The future answer. `item` is the prompt's row, `key` names the call among all of the job's."""
        return self._pool.submit(self._answer, call, item, key)

    def _answer(self, call: ToolCall, item: Mapping[str, Any], key: str) -> ToolResult:
        """Runs a call; takes at most its tool's time limit and OVERTIME_SECONDS."""
        tool = self._tools.get(call.name)
        if call.error:
            return ToolResult(f"Error: {call.error}", failed=True)
        if tool is None:
            return ToolResult(f"Error: unknown tool {call.name[:64]!r}", failed=True)
        seconds = tool.timeout_seconds + OVERTIME_SECONDS
        answer = within(seconds, lambda: self._run(tool, call, item, key))
        return ToolResult(shortened(answer.text, tool.max_output_chars), answer.failed)

    def _run(
        self, tool: PythonTool | HttpTool, call: ToolCall, item: Mapping[str, Any], key: str
    ) -> ToolResult:
        if isinstance(tool, PythonTool):
            return _run_python(tool, call, self._interpreters)
        if isinstance(tool, HttpTool):
            return _run_http(tool, call, item, key)
        assert_never(tool)


def within(seconds: float, run: Callable[[], ToolResult]) -> ToolResult:
    """The answer, or an error after `seconds`: the thread is left behind and ends by its own time limits."""
    future: Future[ToolResult] = Future()

    def fulfil() -> None:
        try:
            future.set_result(run())
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer must hear of it
            future.set_exception(error)

    threading.Thread(target=fulfil, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        return ToolResult(f"Error: no answer within {seconds:.3g} s", failed=True)
    except Exception as error:  # noqa: BLE001 - every failure of a tool is its answer
        return ToolResult(f"Error: {type(error).__name__}: {error}", failed=True)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters: a long text's beginning and end, and how long it was."""
    if len(text) <= limit:
        return text
    note = f"\n[... cut from {len(text)} characters ...]\n"
    room = limit - len(note)
    if room < 2:
        return text[:limit]
    return f"{text[: room - room // 2]}{note}{text[-(room // 2) :]}"


def _run_python(tool: PythonTool, call: ToolCall, interpreters: Interpreters) -> ToolResult:
    """What the code printed, the value of its last line, and its traceback, as a notebook shows them."""
    code = call.arguments.get("code")
    if not isinstance(code, str):
        return ToolResult("Error: the argument code must be a string", failed=True)
    result = interpreters.run(code, tool.timeout_seconds)
    error = f"Error: out of time after {tool.timeout_seconds:.3g} s" if result.timed_out else result.error
    value = storable(str(parse_json(result.value))) if result.value else ""
    shown = [part for part in (result.output.rstrip("\n"), value, error) if part]
    return ToolResult("\n".join(shown) or NO_OUTPUT, failed=bool(error))


def _run_http(tool: HttpTool, call: ToolCall, item: Mapping[str, Any], key: str) -> ToolResult:
    """The server's answer as it is. Asked once: a call may act, and acting twice may not be the same."""
    try:
        body, headers = http_request(call, item, key)
        answer = post(tool.url, body, headers, timeout_seconds=tool.timeout_seconds)
    except (NoAnswer, RefusedUrl, ValueError) as error:
        return ToolResult(f"Error: {error}", failed=True)
    text = answer.body.decode("utf-8", "replace").strip()
    if not 200 <= answer.status < 300:
        return ToolResult(f"Error: status {answer.status}\n{text}".strip(), failed=True)
    return ToolResult(text or NO_OUTPUT)


def http_request(call: ToolCall, item: Mapping[str, Any], key: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a call. Raises ValueError.

    The trace_id follows from the call, its row and its place in the job alone, so a resumed step repeats it.
    Signed as Standard Webhooks are where GRPO_ENDPOINT_SECRET is set.
    """
    data = {"name": call.name, "arguments": call.arguments, "item": dict(item)}
    try:
        canonical = json.dumps([data, key], sort_keys=True, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("the call or its row has no JSON form") from None
    trace_id = f"trace_{hashlib.sha256(canonical.encode()).hexdigest()[:32]}"
    body = json.dumps({**data, "trace_id": trace_id}).encode()
    if len(body) > MAX_REQUEST_BYTES:
        raise ValueError(f"the call has more than {MAX_REQUEST_BYTES} bytes")
    headers = {"Content-Type": "application/json"}
    if secret := os.environ.get("GRPO_ENDPOINT_SECRET"):
        headers |= signature_headers([SecretStr(secret)], trace_id, body)
    return body, headers


def _require_sandbox() -> None:
    try:
        untrusted_interpreter()
    except SandboxUnavailable as error:
        raise ConfigError(
            f"the python tool needs a sandbox: {error}",
            hint="Install bubblewrap on the worker, or take the python tool out of the job.",
        ) from error
