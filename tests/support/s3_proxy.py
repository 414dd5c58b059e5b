"""A proxy before an S3-compatible store that forwards requests or injects network faults.

Boundary: HTTP/1.1 with `Content-Length` bodies, as S3 has it; without buckets and signatures.
Each fault is for the requests a test names; how often it struck is counted.
"""

import http.client
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

PIECE_BYTES = 2**16
CUT = -1
"""Instead of a status: forward half of the request, then close both connections."""
CUT_ANSWER = -2
"""The store does the request, and half of its response is returned."""
HANG = -3
"""No response."""
KEY_ID = "AKIATESTTESTTEST"
Rule = Callable[[str, str], int | None]
"""(method, path with query) → an HTTP status to return, one of the three above, or None to forward it."""


def pass_all(_method: str, _path: str) -> None:
    """The rule of a network without faults."""


def strike(fault: int, methods: str, words: str = "", *, times: int = 1_000_000) -> Rule:
    """The fault for the first requests of these methods whose path contains the words."""
    left = itertools.repeat(fault, times)

    def rule(method: str, path: str) -> int | None:
        return next(left, None) if method in methods.split() and words in path else None

    return rule


@dataclass
class S3Proxy:
    """Forwards a free port to the store at `store_port`. Use as a context manager."""

    store_port: int
    rule: Rule = pass_all
    struck: list[str] = field(default_factory=list)
    """`METHOD path` of each request with a fault."""
    seen: list[str] = field(default_factory=list)
    """`METHOD path` of all requests."""

    def __post_init__(self) -> None:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="s3-proxy")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def hold(self) -> None:
        """Wait until the proxy ends."""
        self._ended.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: S3Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        name = f"{self.command} {self.path}"
        self.proxy.seen.append(name)
        fault = self.proxy.rule(self.command, self.path)
        if fault is not None:
            self.proxy.struck.append(name)
        length = int(self.headers.get("content-length", 0))
        if fault == HANG:
            self.proxy.hold()
            self.close_connection = True
        elif fault is not None and fault > 0:
            self.rfile.read(length)
            self._answer(fault, {"content-type": "application/xml"}, error_body(fault))
        else:
            self._pass_on(length, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _pass_on(self, length: int, fault: int | None) -> None:
        store = http.client.HTTPConnection("127.0.0.1", self.proxy.store_port, timeout=30)
        try:
            self._send(store, length // 2 if fault == CUT else length)
            if fault == CUT:
                self.close_connection = True
                return
            answer = store.getresponse()
            body = answer.read()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            self._answer(answer.status, headers, body, is_cut=fault == CUT_ANSWER)
        except ConnectionError:
            self.close_connection = True  # one side has closed, so close the other
        finally:
            store.close()

    def _send(self, store: http.client.HTTPConnection, num_bytes: int) -> None:
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            store.putheader(name, value)
        store.endheaders()
        while num_bytes:
            piece = self.rfile.read(min(PIECE_BYTES, num_bytes))
            if not piece:
                raise ConnectionResetError("the client left")
            store.send(piece)
            num_bytes -= len(piece)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = headers.get("content-length", len(body)) if self.command == "HEAD" else len(body)
        self.send_header("content-length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
        self.close_connection = self.close_connection or is_cut

    def log_message(self, *_arguments: object) -> None:
        """Write no log: tests read `seen`."""


def error_body(status: int) -> bytes:
    """An error response like S3's, which names the key id for status 403."""
    code = {403: "InvalidAccessKeyId", 404: "NoSuchBucket", 503: "SlowDown"}.get(status, "InternalError")
    return f"<Error><Code>{code}</Code><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>".encode()
