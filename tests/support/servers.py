"""Real PostgreSQL and Redis servers and an S3-compatible store for the tests, each on a free port.

Each has its own temporary folder. A server can be stopped, killed and restarted on the same port and data.
The kernel kills it when the test process ends. Under root, PostgreSQL runs as an unprivileged user.
"""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
import redis

from grpo_engine.process.parent_death import dies_with_this_process
from tests.ports import free_port

START_SECONDS = 120
MEMORY_BYTES = 2 << 30


def wait_until(condition: Callable[[], Any], seconds: float = 120.0, what: str = "") -> Any:
    """Wait for the condition's first true value and return it. Raises TimeoutError after `seconds`.

    The pauses between checks grow, because the awaited process needs the processor too.
    """
    begun = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begun
        if waited > seconds:
            raise TimeoutError(f"after {seconds} s still not: {what or condition}")
        time.sleep(min(max(0.01, waited / 20), 0.05))
    return value


def answer_of(url: str, seconds: float = 5) -> httpx.Response | None:
    """The response to a GET request; None without a server.

    Without TLS: loading certificates takes a hundred times as long as the request.
    """
    try:
        return httpx.get(url, timeout=seconds, verify=False)
    except httpx.TransportError:
        return None


def is_ok(url: str, seconds: float = 5) -> bool:
    """Whether a GET request returns 200."""
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
    """A folder in memory if it has enough space: a busy disk could block a server for seconds."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free >= MEMORY_BYTES
    return shared if has_room and os.access(shared, os.W_OK) else None


class Server(ABC):
    """One child process with a folder and a port. Use as a context manager."""

    stop_signal = signal.SIGTERM
    is_in_memory = True
    """Keep its folder in memory if possible. Set it to False to measure the cost of a disk."""
    address = "127.0.0.1"
    """The only address on which it listens; set it before the start."""

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
        """Whether it accepts requests."""

    def start(self) -> Self:
        """Start (again) on the same port and data, and wait until it responds."""
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
        """Shut it down and wait for its end."""
        self._end(self.stop_signal)

    def abort(self) -> None:
        """End it at once without clean-up (PostgreSQL: immediate)."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """Send SIGKILL, as if the machine were lost."""
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
    """PostgreSQL for superuser `grpo`, no password, TCP only.

    Without fsync: committed data survive SIGKILL, but not a power failure.
    """

    stop_signal = signal.SIGINT  # "fast" ends open sessions

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
            "listen_addresses": self.address,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
        }
        given = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [find_program("postgres"), "-D", str(self.data), "-p", str(self.port), *given]

    def url_of(self, database: str) -> str:
        return f"postgresql://grpo@{self.address}:{self.port}/{database}"

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
        """Run a statement outside of any transaction, on the maintenance database."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement.encode())

    def copy(self, template: str, name: str) -> None:
        """Copy a database by copying its files, which is twice as fast as the default of PostgreSQL 15 and
        later."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            way = " STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}{way}".encode())


class Redis(Server):
    """Redis that never evicts, as a broker must, without persistence."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)

    def command(self) -> list[str]:
        program = shutil.which("redis-server") or "redis-server"
        options = {"port": self.port, "bind": self.address, "save": "", "appendonly": "no"}
        options |= {"maxmemory": "64mb", "maxmemory-policy": "noeviction", "dir": self.folder}
        options["databases"] = 64
        return [program, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}/0"

    def new_url(self) -> str:
        """URL of a new Redis database: deployments must not receive each other's wake-ups."""
        return f"redis://{self.address}:{self.port}/{next(self.numbers)}"

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
        """Set an eviction policy, which a broker must not have, and wait until messages are evicted."""
        client = self.client()
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", "1")
        wait_until(lambda: client.dbsize() == 0, 120, "all messages are evicted")
        client.config_set("maxmemory", "64mb")
        client.config_set("maxmemory-policy", "noeviction")
        client.close()

    def flush(self) -> None:
        """Delete all keys (FLUSHALL), so that every wake-up is lost."""
        client = self.client()
        client.flushall()
        client.close()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make it a replica without a primary, as during a failover, until the block ends."""
        client = self.client()
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")
        client.close()
