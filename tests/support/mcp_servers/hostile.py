"""A server whose answers a test writes."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]


def tool(name: str = "look", **changed: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "description": "Look.", "inputSchema": {"type": "object"}, **changed}


@dataclass
class HostileServer:
    """Opens sessions correctly; `answer(message, send)` writes the response to any other request.

    If `answer` returns a result, the server sends it as a valid response.
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
