"""Runs tool calls: Python in the sandbox, HTTP and MCP through the guarded clients (`outbound/`).

Boundary: a call goes in, a text for the model comes out, in bounded time and size. A failure is the answer to
its call and affects no other call.
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
from queue import LifoQueue
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from grpo_engine.config.tools import HttpTool, ListedTool, NamedTool, PythonTool, Tool, named
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.records import storable
from grpo_engine.contract.strict_json import parse_json
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.signing import signature_headers
from grpo_engine.outbound.web import NoAnswer, post
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.sandbox import Outcome, PythonServer, SandboxUnavailable, untrusted_interpreter

if TYPE_CHECKING:
    from grpo_engine.outbound.mcp_client import McpSessions

CALLS_AT_A_TIME = 8
OVERTIME_SECONDS = 5.0
"""Time beyond a tool's own limit, to start it and to resolve its host name."""
MAX_REQUEST_BYTES = 2**20
MAX_NAMES_CHARACTERS = 500
"""Maximum characters of the tools' names in the answer to a call of an unknown one."""
NO_OUTPUT = "(no output)"
CELL = '''
import ast, linecache, sys, types

def run(code):
    """Run code as a notebook's cell; returns `repr` of its last expression, or nothing."""
    linecache.cache["<code>"] = len(code), None, code.splitlines(True), "<code>"
    tree = compile(code, "<code>", "exec", ast.PyCF_ONLY_AST)  # ast.parse would be in the traceback
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    sys.modules["__main__"] = types.ModuleType("__main__")
    names = vars(sys.modules["__main__"])
    exec(compile(tree, "<code>", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names) if last else None
    return "" if value is None else repr(value)
'''
"""The program of every sandbox. Tracebacks leave it out, because its file name starts with `<guest`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer that the model reads."""

    text: str
    failed: bool = False
    """Whether the call could not be read or run, or its tool reported a failure."""


class Toolbox:
    """A job's tools by name. Raises ConfigError if one of them cannot work on this machine."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in named(tools)}
        self._python = any(isinstance(tool, PythonTool) for tool in tools)
        if self._python:
            try:
                untrusted_interpreter()
            except SandboxUnavailable as error:
                raise ConfigError(
                    f"the python tool needs a sandbox: {error}",
                    hint="Install bubblewrap on the worker, or remove the python tool from the job.",
                ) from error

    @contextmanager
    def open(self) -> Iterator[OpenToolbox]:
        """Accepts calls inside the block; when it ends, no call is waiting or running."""
        pool = ThreadPoolExecutor(CALLS_AT_A_TIME, thread_name_prefix="tool")
        interpreters = Interpreters(CALLS_AT_A_TIME if self._python else 0)
        sessions = _mcp_sessions() if any(isinstance(t, ListedTool) for t in self.tools.values()) else None
        try:
            yield OpenToolbox(self.tools, pool, interpreters, sessions)
        finally:
            pool.shutdown(cancel_futures=True)
            interpreters.close()
            if sessions is not None:
                sessions.close()


def _mcp_sessions() -> McpSessions:
    from grpo_engine.outbound.mcp_client import McpSessions

    return McpSessions()


class Interpreters:
    """Up to `count` reused sandboxes with a new process for every call; each starts when it is first needed.

    A call takes 2 ms this way, and 40 ms with a sandbox of its own. If a call was killed or left something
    behind, its sandbox is replaced before the next call.
    """

    def __init__(self, count: int) -> None:
        self._idle: LifoQueue[PythonServer] = LifoQueue()
        self._servers = [PythonServer(CELL, filename="<guest cell>") for _ in range(count)]
        for server in self._servers:
            self._idle.put(server)

    def run(self, code: str, timeout: float) -> Outcome:
        """Run code for up to `timeout` + 1 seconds; `value` is a JSON string.

        Waits until an interpreter is free. Raises SandboxUnavailable.
        """
        server = self._idle.get()
        try:
            return server.request(timeout, mode="call", call="run", args=[code], kwargs={})
        finally:
            self._idle.put(server)

    def close(self) -> None:
        for server in self._servers:
            server.close()


@dataclass(frozen=True, slots=True)
class OpenToolbox:
    tools: Mapping[str, NamedTool]
    pool: ThreadPoolExecutor
    interpreters: Interpreters
    sessions: McpSessions | None

    def submit(
        self, call: ToolCall, item: Mapping[str, Any], key: str, rollout: str = ""
    ) -> Future[ToolResult]:
        """The future answer. `item` is the prompt's row, `key` is unique among the job's calls, `rollout`
        among all completions."""
        return self.pool.submit(self._answer, call, item, key, rollout)

    def end(self, rollout: str) -> None:
        """End the MCP sessions of a completion."""
        if self.sessions is not None:
            self.sessions.end(rollout)

    def _answer(self, call: ToolCall, item: Mapping[str, Any], key: str, rollout: str) -> ToolResult:
        """Run a call, for at most its tool's time limit plus OVERTIME_SECONDS."""
        tool = self.tools.get(call.name)
        if call.error:
            return ToolResult(f"Error: {call.error}", failed=True)
        if tool is None:
            known = shortened(", ".join(self.tools), MAX_NAMES_CHARACTERS)
            return ToolResult(f"Error: unknown tool {call.name[:64]!r}; known: {known}", failed=True)
        seconds = tool.timeout_seconds + OVERTIME_SECONDS
        if isinstance(tool, PythonTool):
            answer = within(seconds, lambda: _run_python(tool, call, self.interpreters))
        elif isinstance(tool, ListedTool):
            answer = within(seconds, lambda: _run_mcp(tool, call, self.sessions, rollout))
        else:
            answer = within(seconds, lambda: _run_http(tool, call, item, key))
        return ToolResult(shortened(answer.text, tool.max_output_chars), answer.failed)


def within(seconds: float, run: Callable[[], ToolResult]) -> ToolResult:
    """The answer, or an error after `seconds`; the thread then runs on until its own time limits end it."""
    future: Future[ToolResult] = Future()

    def fulfil() -> None:
        try:
            future.set_result(run())
        except Exception as error:  # noqa: BLE001 - raised again below
            future.set_exception(error)

    threading.Thread(target=fulfil, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        return ToolResult(f"Error: no answer within {seconds:.3g} s", failed=True)
    except Exception as error:  # noqa: BLE001 - every failure of a tool is its answer
        return ToolResult(f"Error: {type(error).__name__}: {error}", failed=True)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters: for a longer text its start, a note of its length, and its end."""
    if len(text) <= limit:
        return text
    note = f"\n[... cut from {len(text)} characters ...]\n"
    room = limit - len(note)
    if room < 2:
        return text[:limit]
    return f"{text[: room - room // 2]}{note}{text[-(room // 2) :]}"


def _run_python(tool: PythonTool, call: ToolCall, interpreters: Interpreters) -> ToolResult:
    """The code's output, the value of its last line and its traceback, as a notebook shows them."""
    code = call.arguments.get("code")
    if not isinstance(code, str):
        return ToolResult("Error: the argument code must be a string", failed=True)
    result = interpreters.run(code, tool.timeout_seconds)
    error = f"Error: out of time after {tool.timeout_seconds:.3g} s" if result.timed_out else result.error
    value = storable(str(parse_json(result.value))) if result.value else ""
    shown = [part for part in (result.output.rstrip("\n"), value, error) if part]
    return ToolResult("\n".join(shown) or NO_OUTPUT, failed=bool(error))


def _run_http(tool: HttpTool, call: ToolCall, item: Mapping[str, Any], key: str) -> ToolResult:
    """The server's answer. A request is never repeated, because a call may have effects."""
    try:
        body, headers = http_request(call, item, key)
        answer = post(tool.url, body, {**tool.headers, **headers}, timeout_seconds=tool.timeout_seconds)
    except (NoAnswer, RefusedUrl, ValueError) as error:
        return ToolResult(f"Error: {error}", failed=True)
    if answer.headers.get("content-encoding", "identity") != "identity":
        return ToolResult("Error: the answer is compressed", failed=True)
    text = answer.body.decode("utf-8", "replace").strip()
    if not 200 <= answer.status < 300:
        return ToolResult(f"Error: status {answer.status}\n{text}".strip(), failed=True)
    return ToolResult(text or NO_OUTPUT)


def _run_mcp(tool: ListedTool, call: ToolCall, sessions: McpSessions | None, rollout: str) -> ToolResult:
    """The server's answer. A call is never repeated, because it may have effects."""
    from grpo_engine.outbound.mcp_client import McpFailure, McpServer

    assert sessions is not None
    server = McpServer(tool.server_url, tool.headers, tool.timeout_seconds)
    try:
        answer, failed = sessions.call(server, rollout, call.name, call.arguments)
    except (McpFailure, RefusedUrl) as error:
        return ToolResult(storable(f"Error: {error}"), failed=True)
    text = storable(answer).strip()
    return ToolResult(f"Error: {text}" if failed else text or NO_OUTPUT, failed)


def http_request(call: ToolCall, item: Mapping[str, Any], key: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a call. Raises ValueError.

    The trace_id depends only on the call, its row and its place in the job, so a resumed step repeats it.
    The request is signed as in Standard Webhooks if GRPO_ENDPOINT_SECRET is set.
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
