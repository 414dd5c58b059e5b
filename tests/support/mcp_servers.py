"""MCP servers on 127.0.0.1: one of the official package, and one whose answers a test writes.

with served(official()) as url: ...        # GRPO_ALLOWED_HOSTS must name the host
with served(HostileServer(answer)) as url: ...
"""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

ALLOWED = "127.0.0.1,localhost"
"""GRPO_ALLOWED_HOSTS for these servers."""
Send = Callable[[dict[str, Any]], Awaitable[None]]


def official() -> MCPServer[Any]:
    """Tools of the official package; `count` counts the calls of its session."""
    server = MCPServer("shop", log_level="ERROR")
    counts: dict[str, int] = {}

    @server.tool()
    def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def count(ctx: Context[Any]) -> int:
        """How often this session has called."""
        session = header(ctx, "mcp-session-id")
        counts[session] = counts.get(session, 0) + 1
        return counts[session]

    @server.tool()
    def seen(name: str, ctx: Context[Any]) -> str:
        """A header of the request."""
        return header(ctx, name)

    @server.tool()
    def break_down() -> str:
        """Fail."""
        raise ValueError("out of order")

    @server.tool(structured_output=False)
    def draw() -> list[Any]:
        """A picture with a caption."""
        return ["a dot", Image(data=b"\x89PNG" * 30, format="png")]

    return server


def header(ctx: Context[Any], name: str) -> str:
    request = ctx.request_context.request
    return str(request.headers.get(name, "")) if request else ""


@dataclass
class Recorder:
    """The official server, with the method and headers of each request."""

    app: Any = field(default_factory=lambda: official().streamable_http_app())
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.requests.append((scope["method"], headers))
        await self.app(scope, receive, send)


@contextmanager
def served(app: Any, path: str = "/mcp", **options: Any) -> Iterator[str]:
    """Serve an ASGI application or an MCPServer in a thread; its URL. `options`: of uvicorn."""
    asgi = app.streamable_http_app() if isinstance(app, MCPServer) else app
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(asgi, log_config=None, timeout_graceful_shutdown=1, **options)
    server = uvicorn.Server(config)
    started = threading.Event()
    startup = server.startup

    async def start(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def tool(name: str = "look", **changed: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "description": "Look.", "inputSchema": {"type": "object"}, **changed}


@dataclass
class HostileServer:
    """Opens sessions as it should; `answer(message, send)` writes the response to any other request.

    It returns a result instead, if it wants to behave.
    """

    answer: Callable[[dict[str, Any], Send], Awaitable[dict[str, Any] | None]]
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Method, headers and message of each."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when a client ends a session."""

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        message = json.loads(body) if body else {}
        self.requests.append((scope["method"], headers, message))
        if scope["method"] == "DELETE":
            self.ended.set()
            await respond(send, b"")
        elif "id" not in message:
            await respond(send, b"", status=202)
        elif message["method"] == "initialize":
            info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            await result(send, message, {**info, "serverInfo": {"name": "hostile", "version": "1"}})
        elif (answer := await self.answer(message, send)) is not None:
            await result(send, message, answer)

    def calls(self) -> list[dict[str, Any]]:
        return [message for _, _, message in self.requests if message.get("method") == "tools/call"]


async def result(send: Send, message: dict[str, Any], value: dict[str, Any]) -> None:
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": value}
    await respond(send, json.dumps(answer).encode())


async def respond(send: Send, body: bytes, *, status: int = 200, **headers: str) -> None:
    await begin(send, status=status, **headers)
    await send({"type": "http.response.body", "body": body})


async def begin(send: Send, *, status: int = 200, **headers: str) -> None:
    fields = {"content-type": "application/json", "mcp-session-id": "s1", **headers}
    encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def stream(send: Send, piece: bytes, *, pause_seconds: float = 0.0) -> None:
    """An event stream that repeats a piece until the client disconnects."""
    await begin(send, **{"content-type": "text/event-stream"})
    while True:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(pause_seconds)
