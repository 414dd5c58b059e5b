"""Real PostgreSQL and Redis servers and an S3-compatible store for the tests, each on a free port.

Each has its own temporary folder. A server can be stopped, killed and started again on the same port and
data. It ends with the test process, however that ends. Started as root, PostgreSQL runs under an
unprivileged user.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
import redis

from grpo_engine.process.parent_death import dies_with_this_process

START_SECONDS = 30
MEMORY_BYTES = 2 << 30


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], seconds: float = 10.0, what: str = "") -> Any:
    """The condition's first true value. Raises TimeoutError after `seconds`.

    The longer it takes, the rarer it asks: what is waited for needs the processor itself.
    """
    begun = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begun
        if waited > seconds:
            raise TimeoutError(f"after {seconds} s still not: {what or condition}")
        time.sleep(min(max(0.01, waited / 20), 0.05))
    return value


def answer_of(url: str, seconds: float = 5) -> httpx.Response | None:
    """What is answered to GET; None where nobody answers.

    Without TLS: to load its certificates takes a hundred times as long as the request.
    """
    try:
        return httpx.get(url, timeout=seconds, verify=False)
    except httpx.TransportError:
        return None


def is_ok(url: str, seconds: float = 5) -> bool:
    """Whether GET is answered with 200."""
    answer = answer_of(url, seconds)
    return answer is not None and answer.status_code == 200


def find_program(name: str) -> str:
    """A PostgreSQL program from PATH or Debian's folders. Raises FileNotFoundError."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"{name} is not installed: `make system` installs it")


def _version(folder: Path) -> float:
    return float(folder.parent.name)


def _memory() -> Path | None:
    """A folder in memory, where there is one with room: a busy disk must not stop a server for seconds."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free >= MEMORY_BYTES
    return shared if has_room and os.access(shared, os.W_OK) else None


class Server(ABC):
    """One child process with a folder and a port. Use as a context manager."""

    stop_signal = signal.SIGTERM
    is_in_memory = True
    """Its folder, where there is room; what is to cost what a disk costs says no."""

    def __init__(self) -> None:
        self.port = free_port()
        parent = _memory() if self.is_in_memory else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"grpo-{type(self).__name__.lower()}-", dir=parent))
        self.process: subprocess.Popen[bytes] | None = None
        self.identity: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @abstractmethod
    def command(self) -> list[str]:
        """Program and arguments."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves."""

    def start(self) -> Self:
        """Starts (again) on the same port and data; returns when it answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            self._spawn()
            while self.process is not None and self.process.poll() is None:
                if self.answers():
                    return self
                time.sleep(0.02)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.command()[0]} does not start: {self.log()}")
            time.sleep(0.1)

    def _spawn(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=dies_with_this_process(self.stop_signal),
                **self.identity,
            )

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """Ends it in an orderly way and waits for its end."""
        self._end(self.stop_signal)

    def abort(self) -> None:
        """Ends it at once, without a clean-up of its own (PostgreSQL: immediate)."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL, as a lost machine."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout=30)

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL for superuser `grpo`, no password, TCP on 127.0.0.1 only.

    Without fsync: what was committed survives SIGKILL, though not a power cut.
    """

    stop_signal = signal.SIGINT  # "fast": open sessions are ended

    def __init__(self) -> None:
        super().__init__()
        self.data = self.folder / "data"
        if os.geteuid() == 0:
            self._drop_root()
        options = ["-U", "grpo", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [find_program("initdb"), "-D", self.data, *options],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self.identity,
        )

    def _drop_root(self) -> None:
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        account = names.get("postgres") or names["nobody"]
        os.chown(self.folder, account.pw_uid, account.pw_gid)
        self.identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def command(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
        }
        given = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [find_program("postgres"), "-D", str(self.data), "-p", str(self.port), *given]

    def url_of(self, database: str) -> str:
        return f"postgresql://grpo@127.0.0.1:{self.port}/{database}"

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str) -> None:
        """One statement outside any transaction, on the maintenance database."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement.encode())

    def copy(self, template: str, name: str) -> None:
        """A new database like that one, copied as files: half as dear as the way that is usual since 15."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            way = " STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}{way}".encode())


class Redis(Server):
    """Redis as a broker should be: it never evicts. Without persistence."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)

    def command(self) -> list[str]:
        program = shutil.which("redis-server") or "redis-server"
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        options |= {"maxmemory": "64mb", "maxmemory-policy": "noeviction", "dir": self.folder}
        options["databases"] = 64
        return [program, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def new_url(self) -> str:
        """A database of one deployment: two with the same would take each other's wake-ups."""
        return f"redis://127.0.0.1:{self.port}/{next(self.numbers)}"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=5)

    def answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def evict(self) -> None:
        """What a broker must never do: throw messages away to make room."""
        client = self.client()
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", "1")
        wait_until(lambda: client.dbsize() == 0, 10, "all messages are evicted")
        client.config_set("maxmemory", "64mb")
        client.config_set("maxmemory-policy", "noeviction")
        client.close()

    def flush(self) -> None:
        """FLUSHALL: every wake-up is lost."""
        client = self.client()
        client.flushall()
        client.close()
