"""A fake Hugging Face hub on a free port: the endpoints of an upload, which records what it receives."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """The received repositories, files and messages."""

    token: str
    url: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name → the request that created it."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Files of the last commit, by path."""
    messages: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their sha256."""

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{body.get('organization')}/{body['name']}" if body.get("organization") else body["name"]
        self.repositories[name] = body
        return {"url": f"{self.url}/{name}"}

    def commit(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile"
                self.files[value["path"]] = self.objects[value["oid"]]
        return {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.url}/org/name/commit/{'0' * 40}"}

    def respond(self, path: str, content: bytes) -> dict[str, Any]:
        if path == "/api/repos/create":
            return self.create(json.loads(content))
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = json.loads(content)["files"]
            return {
                "files": [
                    {**each, "uploadMode": _mode(each["path"]), "shouldIgnore": False} for each in files
                ]
            }
        if path.endswith("/info/lfs/objects/batch"):
            return {"objects": [self._upload(each) for each in json.loads(content)["objects"]]}
        assert "/commit/" in path, path
        return self.commit([json.loads(line) for line in content.splitlines()])

    def _upload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return {**wanted, "actions": {"upload": {"href": f"{self.url}/upload/{wanted['oid']}"}}}


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"


@contextmanager
def hub(token: str) -> Iterator[Hub]:
    found = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {found.token}":
                self._send(401, {"error": "Invalid username or password."})
            else:
                self._send(200, found.respond(self.path, content))

        def do_PUT(self) -> None:
            found.objects[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(200, {})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Disables logging."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            http.shutdown()
            thread.join()
