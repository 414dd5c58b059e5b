"""The API as a process of its own over PostgreSQL, and raw sockets to it: what bad clients are tried on."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.platform.db import connect
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import settings_for
from tests.ports import free_port
from tests.service.embedded import environment
from tests.service.job_samples import make_model
from tests.support.api_process import Process, running_api


@dataclass
class Api:
    """A running service with one model, and a key for it."""

    settings: Settings
    port: int
    key: str
    process: Process

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def pid(self) -> int:
        """Of the service itself, also where another program stays around it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "api.log").read_text(errors="replace")

    @property
    def scratch(self) -> Path:
        """The process's own temporary folder, so that what it leaves there can be seen."""
        return self.home / "tmp"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=60)

    def stored(self) -> list[Path]:
        """All stored objects, as the process sees its storage."""
        store = Path(f"/proc/{self.pid}/root{self.home / 'artifacts'}")
        return [path for path in store.rglob("*") if path.is_file()]

    def temporary_files(self) -> list[str]:
        """Temporary files in use: they have no name, only a descriptor."""
        found = []
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                found.append(os.readlink(descriptor))
        return [name for name in found if name.startswith(str(self.scratch))]

    def connect(self) -> socket.socket:
        """A connection that sends nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def serving(home: Path, database_url: str, *, within: Sequence[str] = (), **more: str) -> Iterator[Api]:
    """Starts `grpo serve`'s own command (`within` another) on a migrated database and ends it."""
    make_model(home)
    settings = settings_for(home, database_url)
    (home / "tmp").mkdir()
    database = connect(settings)
    with database.transaction() as session:
        key = create_key(session, "tenant-a")
    database.engine.dispose()
    port = free_port()
    variables = environment(home, GRPO_DATABASE_URL=database_url, TMPDIR=str(home / "tmp"), **more)
    with running_api(port, variables, home / "api.log", within=within, path="/livez") as process:
        yield Api(settings, port, key, process)
