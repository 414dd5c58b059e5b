"""Tools of MCP servers, through the official client: their list, and calls in one session per rollout.

Sessions run on one event loop in a thread. A server is untrusted: `mcp_transport.py` bounds where requests go
and what comes back; everything here has a time limit; a session that fails is dropped, and the next call
opens a new one. Answers are not checked against the server's own schemas, and only their text is used.
Boundary: needs the packages `mcp` and `httpx2`, so it is imported where it is used.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx2
import mcp_types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.mcp_transport import CLOSE_SECONDS, PinnedTransport
from grpo_engine.outbound.web import MAX_ANSWER_BYTES

MAX_LISTED = 1000
"""Maximum number of tools that a server may list."""
SHOWN_CHARACTERS = 200
_REQUEST_IS_WRONG = (mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND)
"""Errors after which the session can be used."""
_STREAM_ENDED = "SSE stream ended without a response"
"""The MCP client's message for any stream that is cut off, whatever the reason."""
_UNREADABLE = ("Failed to parse JSON response", "Failed to parse SSE message")
for _name in ("mcp", "httpx2"):  # they log what servers send, and URLs
    logging.getLogger(_name).setLevel(logging.CRITICAL)
T = TypeVar("T")


class McpFailure(Exception):
    """The server could not be reached or gave an invalid answer; the message gives the reason."""


@dataclass(frozen=True)
class McpServer:
    url: str
    headers: Mapping[str, str] = field(hash=False)
    timeout_seconds: float
    """Limit of opening a session and making one request, and of listing the tools."""


class _Session:
    """A session that is open until `end`, in a task of its own."""

    def __init__(self, portal: BlockingPortal, server: McpServer, rollout: str) -> None:
        self.has_ended = False
        """Whether new calls need another session."""
        self.num_calls = 0
        self._portal = portal
        self._server = server
        self._rollout = {"X-Rollout-Id": rollout} if rollout else {}
        self._transport = PinnedTransport(server.url)
        self._opened: Future[ClientSession] = Future()
        self._ending = anyio.Event()
        self.task = portal.start_task_soon(self._hold)

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._opened.set_result(await self._open(stack))
                await self._ending.wait()
        except Exception as error:  # noqa: BLE001 - raised in `request`
            self.has_ended = True
            if not self._opened.done():
                self._opened.set_exception(error)

    async def _open(self, stack: AsyncExitStack) -> ClientSession:
        server, transport = self._server, self._transport
        await transport.look_up()
        patience = server.timeout_seconds + CLOSE_SECONDS  # `request` ends sooner, and names the limit
        client = httpx2.AsyncClient(transport=transport, timeout=patience, trust_env=False)
        client.headers.update(server.headers)
        client.headers.update(self._rollout)
        await stack.enter_async_context(client)
        streams = streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES)
        session = ClientSession(*await stack.enter_async_context(streams))
        await stack.enter_async_context(session)
        try:
            await session.initialize()
        except MCPError as error:
            if error.code != mcp_types.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()
        return session

    def request(self, make: Callable[[ClientSession], Coroutine[Any, Any, T]]) -> T:
        """Result of a request. Raises McpFailure. The session is then not used again, unless only the
        request was wrong."""
        end = time.monotonic() + self._server.timeout_seconds
        running: Future[T] | None = None
        try:
            session = self._opened.result(self._server.timeout_seconds)
            running = self._portal.start_task_soon(make, session)
            return running.result(max(0.001, end - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - whatever the server caused
            if running is not None:
                running.cancel()
            is_wrong = isinstance(error, MCPError) and error.code in _REQUEST_IS_WRONG
            self.has_ended = self.has_ended or not is_wrong
            raise McpFailure(self._reason(error)) from None

    def _reason(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        host = self._transport.target.host
        if isinstance(error, RefusedUrl):
            return str(error)
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            return f"{host} did not answer within {self._server.timeout_seconds:.3g} s"
        text = _text_of_error(error)
        if text == _STREAM_ENDED:
            text = self._transport.failure or text
        return f"{host}: {text[:SHOWN_CHARACTERS]}"

    def end(self) -> None:
        """End the session soon; if it is not open yet, cancel its opening."""
        self.has_ended = True
        if not self._opened.done():
            self.task.cancel()
        with suppress(RuntimeError):  # the loop has stopped
            self._portal.start_task_soon(self._ending.set)


class McpSessions:
    """The open sessions, one per rollout and server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None
        self._sessions: dict[tuple[str, McpServer], _Session] = {}
        self._tasks: list[Future[None]] = []

    def call(self, server: McpServer, rollout: str, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Text of a tool's answer, and whether it is an error. Raises McpFailure, RefusedUrl."""
        with self._session(server, rollout) as session:
            return session.request(partial(_call, name, arguments))

    def tools(self, server: McpServer) -> list[dict[str, Any]]:
        """`name`, `description` and `parameters` of each tool, unchecked. Raises McpFailure, RefusedUrl."""
        with self._session(server, "") as session:
            return session.request(_tools)

    @contextmanager
    def _session(self, server: McpServer, rollout: str) -> Iterator[_Session]:
        """The rollout's session; after a failure it ends once no call runs in it."""
        session = self._joined(server, rollout)
        try:
            yield session
        finally:
            with self._lock:
                session.num_calls -= 1
                if session.has_ended and not session.num_calls:
                    session.end()

    def _joined(self, server: McpServer, rollout: str) -> _Session:
        with self._lock:
            if self._portal is None:
                self._portal = self._loop.enter_context(start_blocking_portal())
            found = self._sessions.get((rollout, server))
            if found is None or found.has_ended:
                found = _Session(self._portal, server, rollout)
                self._sessions[rollout, server] = found
                self._tasks = [task for task in self._tasks if not task.done()] + [found.task]
            found.num_calls += 1
            return found

    def end(self, rollout: str) -> None:
        """End the rollout's sessions soon."""
        with self._lock:
            for key in [key for key in self._sessions if key[0] == rollout]:
                self._sessions.pop(key).end()

    def close(self) -> None:
        """End all sessions, in bounded time."""
        for rollout, _ in [*self._sessions]:
            self.end(rollout)
        wait(self._tasks, timeout=CLOSE_SECONDS + 1)
        if self._portal is not None:
            self._portal.call(self._portal.stop, True)
        self._loop.close()


def list_tools(servers: Sequence[McpServer]) -> list[list[dict[str, Any]] | McpFailure]:
    """The tools of each server as from `McpSessions.tools`, or why there are none; all at the same time."""
    sessions = McpSessions()

    def listed(server: McpServer) -> list[dict[str, Any]] | McpFailure:
        try:
            return sessions.tools(server)
        except (McpFailure, RefusedUrl) as error:
            return McpFailure(str(error))

    try:
        with ThreadPoolExecutor(max(1, len(servers))) as pool:
            return list(pool.map(listed, servers))
    finally:
        sessions.close()


async def _tools(session: ClientSession) -> list[dict[str, Any]]:
    found: list[mcp_types.Tool] = []
    cursor: str | None = None
    while True:
        params = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
        request = mcp_types.ListToolsRequest(params=params)
        page = await session.send_request(request, mcp_types.ListToolsResult)
        found += page.tools
        if len(found) > MAX_LISTED:
            raise McpFailure(f"more than {MAX_LISTED} tools")
        cursor = page.next_cursor
        if not cursor:
            return [
                {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                for tool in found
            ]


async def _call(name: str, arguments: dict[str, Any], session: ClientSession) -> tuple[str, bool]:
    """Not `call_tool`, which runs the server's own output schema, regular expressions included."""
    params = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
    request = mcp_types.CallToolRequest(params=params)
    result = await session.send_request(request, mcp_types.CallToolResult)
    text = "\n".join(map(_text_of, result.content))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return text, result.is_error


def _text_of_error(error: BaseException) -> str:
    """One line; what pydantic says about an answer that is not MCP is shortened to its first problem."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"the answer is not a valid result of MCP: {place}: {first['msg']}"
    text = " ".join(str(error).split()) or type(error).__name__
    return "the answer is not a JSON-RPC message" if text.startswith(_UNREADABLE) else text


def _text_of(block: mcp_types.ContentBlock) -> str:
    """The block's text, or a note in place of anything that is not text."""
    if isinstance(block, mcp_types.TextContent):
        return block.text
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        return f"[{block.type} left out: {block.mime_type[:64]}, {len(block.data) * 3 // 4} bytes]"
    if isinstance(block, mcp_types.ResourceLink):
        return f"[link: {block.uri}]"
    if isinstance(block.resource, mcp_types.TextResourceContents):
        return block.resource.text
    return f"[resource left out: {len(block.resource.blob) * 3 // 4} bytes]"
