"""Scripted HTTP servers on 127.0.0.1: a chat server and a grader with replies from the test.

    with ChatServer(lambda request: "4") as server:
        ChatClient("default", "judge").complete([...])   # GRPO_ENDPOINTS: "default" has server.url

A reply is a text, JSON, or a `Reply` that fails, stalls, drips, floods or redirects. Requests are recorded in
`server.requests`.
"""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Reply:
    """A reply with status, headers or faults."""

    status: int = 200
    body: bytes | dict[str, Any] | str = b""
    """Bytes are sent unchanged, a dictionary as JSON, a text as the model's answer (chat) or unchanged."""
    headers: Mapping[str, str] = field(default_factory=dict)
    stall: bool = False
    """Send nothing until the server closes."""
    drip_seconds: float = 0.0
    """Send the body byte by byte with these pauses, until the server closes."""
    flood_bytes: int = 0
    """Send this many bytes instead of the body, or fewer if the client disconnects."""
    drop: bool = False
    """Close the connection without a response."""


@dataclass(frozen=True)
class Recorded:
    """A received request."""

    path: str
    headers: Mapping[str, str]
    """Header names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Reply | str | dict[str, Any] | bytes


class _Server(ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or do not trust the certificate; report other errors."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class ScriptedServer:
    """Responds to every POST with the result of `answer(recorded)`. Use as a context manager."""

    path = "/"

    def __init__(self, answer: Callable[[Recorded], Answer]) -> None:
        self.answer = answer
        self.requests: list[Recorded] = []
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def host(self) -> str:
        """`127.0.0.1:port`, an entry for GRPO_ALLOWED_HOSTS."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}{self.path}"

    def wrap(self, context: ssl.SSLContext) -> None:
        """Use TLS. Call it before the server starts."""
        # The connection's own thread does the handshake, so a client that aborts it blocks no other.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )

    def reply(self, recorded: Recorded) -> Reply:
        """The response that is sent."""
        answer = self.answer(recorded)
        return answer if isinstance(answer, Reply) else Reply(body=answer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class EndpointServer(ScriptedServer):
    """A grader: `answer` takes the request's JSON and returns a score, a dictionary or a Reply."""

    path = "/grade"

    def __init__(self, answer: Callable[[dict[str, Any]], float | Answer]) -> None:
        def as_answer(recorded: Recorded) -> Answer:
            given = answer(recorded.json)
            return {"score": given} if isinstance(given, int | float) else given

        super().__init__(as_answer)


class ChatServer(ScriptedServer):
    """OpenAI's `/v1/chat/completions`: `answer` takes the request's JSON and returns text or a Reply.

    A dictionary is sent as JSON text, like the output of a model under a schema. A token is a word.
    """

    path = "/v1"

    def __init__(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        super().__init__(lambda recorded: answer(recorded.json))

    def reply(self, recorded: Recorded) -> Reply:
        if recorded.path != "/v1/chat/completions":
            return Reply(status=404, body={"error": {"message": f"no {recorded.path}"}})
        answer = self.answer(recorded)
        if isinstance(answer, dict):
            answer = json.dumps(answer)
        if isinstance(answer, str):
            answer = Reply(body=answer)
        if isinstance(answer, bytes):
            return Reply(body=answer)
        if isinstance(answer.body, str):
            return replace(answer, body=chat_completion(recorded.json, answer.body))
        return answer


def chat_completion(request: Mapping[str, Any], text: str | None, **message: Any) -> dict[str, Any]:
    """The body of a response; `message` adds fields such as `refusal`."""
    words = sum(len(str(each.get("content", "")).split()) for each in request["messages"])
    usage = {"prompt_tokens": words, "completion_tokens": len((text or "").split())}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model", ""),
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": usage | {"total_tokens": sum(usage.values())},
    }


def _handler_of(script: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            recorded = Recorded(self.path, headers, self.rfile.read(size))
            script.requests.append(recorded)
            self.close_connection = True
            try:
                self._send(script.reply(recorded))
            except (BrokenPipeError, ConnectionResetError):
                return  # the client disconnected

        def _send(self, reply: Reply) -> None:
            if reply.stall:
                script.closing.wait()
            if reply.stall or reply.drop:
                return
            body = reply.body
            if isinstance(body, dict):
                body = json.dumps(body).encode()
            elif isinstance(body, str):
                body = body.encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(reply.flood_bytes or len(body)))
            self.send_header("Connection", "close")
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.flood_bytes:
                self._flood(reply.flood_bytes)
            elif reply.drip_seconds:
                self._drip(body, reply.drip_seconds)
            else:
                self.wfile.write(body)

        def _flood(self, size: int) -> None:
            piece = b" " * 65_536
            for start in range(0, size, len(piece)):
                self.wfile.write(piece[: size - start])

        def _drip(self, body: bytes, seconds: float) -> None:
            for byte in body:
                if script.closing.wait(seconds):
                    return
                self.wfile.write(bytes([byte]))

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log: tests read `requests`."""

    return Handler
