"""A server of the official package, and what serves any ASGI application in a thread.

The package takes a second to import, so each function imports it for the tests that need it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context, MCPServer

ALLOWED = "127.0.0.1,localhost"
"""GRPO_ALLOWED_HOSTS for these servers."""


def official() -> "MCPServer[Any]":
    """Tools of the official package; `count` counts the calls of its session."""
    from mcp.server.mcpserver import Context, Image, MCPServer

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


def header(ctx: "Context[Any]", name: str) -> str:
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
    asgi = app.streamable_http_app() if hasattr(app, "streamable_http_app") else app
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(asgi, log_config=None, timeout_graceful_shutdown=0, **options)
    server = uvicorn.Server(config)
    started = threading.Event()
    startup = server.startup

    async def start(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
