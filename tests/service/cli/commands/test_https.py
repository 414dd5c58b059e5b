"""Commands against a service behind TLS on this machine."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.service.embedded import call_grpo, environment


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for localhost that signs itself, with its key in the same file."""
    file = tmp_path / "localhost.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run(
        [*make, *names, "-keyout", file, "-out", tmp_path / "chain"], check=True, capture_output=True
    )
    file.write_text(file.read_text() + (tmp_path / "chain").read_text())
    return file


class NoJobs(BaseHTTPRequestHandler):
    """Answers with an empty list."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [], "has_more": False}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), NoJobs) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_it_is_reached_without_the_environment_s_proxy_and_with_its_certificates(
    tmp_path: Path, certificate: Path
) -> None:
    dead = dict.fromkeys(("https_proxy", "all_proxy"), "http://127.0.0.1:9")
    with serving(certificate) as url:
        given = {"GRPO_URL": url, "GRPO_API_KEY": "grpo_x", "SSL_CERT_FILE": str(certificate), **dead}
        listed = call_grpo("list", "--json", environment=environment(tmp_path / "home", **given))
    assert (listed.returncode, listed.stderr) == (0, "")
    assert json.loads(listed.stdout) == []
