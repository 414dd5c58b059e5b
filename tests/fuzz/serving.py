"""The API as a process of its own over PostgreSQL, and raw sockets to it: what bad clients are tried on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.auth import create_key
from service.cli.server import api_command
from service.cli.supervisor import dies_with_this_process
from service.db import connect
from tests.conftest import settings_for
from tests.servers import free_port, wait_until
from tests.service.embedded import environment
from tests.service.job_samples import make_model


@dataclass
class Api:
    """A running service with one model, and a key for it."""

    home: Path
    port: int
    key: str
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "api.log").read_text(errors="replace")

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=60)

    def connect(self) -> socket.socket:
        """A connection that says nothing by itself."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def serving(home: Path, database_url: str, **more: str) -> Iterator[Api]:
    """Starts `grpo serve`'s own command on a migrated database and ends it."""
    make_model(home)
    database = connect(settings_for(home, database_url))
    with database.transaction() as session:
        key = create_key(session, "tenant-a")
    database.engine.dispose()
    port = free_port()
    with (home / "api.log").open("ab") as log:
        process = subprocess.Popen(
            api_command("127.0.0.1", port),
            env=environment(home, GRPO_DATABASE_URL=database_url, TMPDIR=os.fspath(_scratch(home)), **more),
            stdout=log,
            stderr=log,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )
    api = Api(home, port, key, process)
    try:
        wait_until(lambda: _answers(api), 60, what="the API answers")
        yield api
    finally:
        process.terminate()
        process.wait(60)


def _scratch(home: Path) -> Path:
    """The process's own temporary folder, so that what it leaves there can be seen."""
    folder = home / "tmp"
    folder.mkdir()
    return folder


def _answers(api: Api) -> bool:
    assert api.process.poll() is None, api.log
    try:
        return httpx.get(f"{api.url}/livez", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
