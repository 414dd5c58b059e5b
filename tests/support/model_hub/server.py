"""A hub on a free port that serves one model: its API's answer and its files, with ranges.

Boundary: what `python -m service.hub` requests. It records the ranges, and can break or stall a download.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

REVISION = "c" * 40


@dataclass
class ModelHub:
    """`files` of the model `id`; requests for files are `fetched` as (name, first byte)."""

    files: dict[str, bytes]
    id: str = "org/small"
    url: str = ""
    token: str | None = None
    """Needed for files, if set: the model is gated."""
    gone_after: int | None = None
    """Bytes of a weight file after which each response breaks off."""
    stalled: threading.Event = field(default_factory=threading.Event)
    """Set when a response has sent `stall_after` bytes and waits."""
    stall_after: int | None = None
    released: threading.Event = field(default_factory=threading.Event)
    """Ends the wait of stalled responses."""
    fetched: list[tuple[str, int]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    @property
    def size_bytes(self) -> int:
        return sum(len(self.files[name]) for name in self.files if not name.endswith((".py", ".bin")))

    def info(self) -> dict[str, Any]:
        return {"id": self.id, "sha": REVISION, "siblings": [self._sibling(name) for name in self.files]}

    def _sibling(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        sibling = {"rfilename": name, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
        if name.endswith(".safetensors"):
            digest = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
        return sibling


class _Handler(BaseHTTPRequestHandler):
    hub: ModelHub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in (f"/api/models/{self.hub.id}", f"/api/models/{self.hub.id}/revision/{REVISION}"):
            self._send(json.dumps(self.hub.info()).encode())
        elif path.startswith(f"/api/models/{self.hub.id}/revision/"):
            self._refuse(404, "RevisionNotFound")
        elif path.startswith(start := f"/{self.hub.id}/resolve/{REVISION}/"):
            self._send_file(path.removeprefix(start))
        else:
            self._refuse(401, "RepoNotFound")

    def _send_file(self, name: str) -> None:
        hub, first = self.hub, 0
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(403, "GatedRepo")
            return
        if given := self.headers.get("Range"):
            first = int(given.removeprefix("bytes=").partition("-")[0])
        hub.fetched.append((name, first))
        content = hub.files[name]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        is_weights = name.endswith(".safetensors")
        if is_weights and hub.gone_after is not None:
            self.wfile.write(content[first : hub.gone_after])
            self.close_connection = True
        elif is_weights and hub.stall_after is not None and first < hub.stall_after:
            self.wfile.write(content[first : hub.stall_after])
            self.wfile.flush()
            hub.stalled.set()
            hub.released.wait(60)
            try:
                self.wfile.write(content[hub.stall_after :])
            except ConnectionError:
                self.close_connection = True
        else:
            self.wfile.write(content[first:])

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Disables logging."""


@contextmanager
def model_hub(files: dict[str, bytes]) -> Iterator[ModelHub]:
    """The hub, until the end of the block."""
    hub = ModelHub(files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        hub.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.released.set()
            http.shutdown()
            thread.join()
