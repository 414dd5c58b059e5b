"""`grpo up`: the embedded service in one command, an API process and one worker process.

The order matters: lock the home, migrate, write the first key, start both, wait for `/readyz`. On SIGTERM
or Ctrl-C the worker ends first (its engine writes a checkpoint and the job is released), then the API, so
that a client can watch until the end; a second signal kills both. Both write to a pipe, whose other end a
third process copies to the log file until the last of them has ended.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EADDRNOTAVAIL
from pathlib import Path
from types import FrameType
from typing import IO, Annotated

import httpx
import typer

from service.cli.operate import log_writer
from service.cli.operate.settings import (
    api_command,
    database_of,
    explained_home,
    migrate_database,
    private_settings,
    worker_command,
)
from service.cli.operate.supervisor import Child
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, note, print_line
from service.settings import Settings, unknown_variables

READY_SECONDS = 60.0
API_DRAIN_SECONDS = 10.0
WRITER_SECONDS = 5.0
"""Time for the log's last lines."""
TICK_SECONDS = 0.1
RECOVERY = {
    "GRPO_LEASE_SECONDS": "30",
    "GRPO_SELF_FENCE_SECONDS": "20",
    "GRPO_HEARTBEAT_SECONDS": "4",
    "GRPO_SWEEP_SECONDS": "3",
}
"""Shorter times than a fleet has, for one worker beside its database. Environment variables override them."""


class Embedded:
    """The two children, the writer of their log, and the signals that end them."""

    def __init__(self, settings: Settings, host: str, port: int, *, shows_all: bool = False) -> None:
        self.settings = settings
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self.log_file = log_file(settings)
        # this process keeps both ends open, so that neither side notices if the other is restarted
        reads, self._writes = os.pipe()
        writer = [sys.executable, "-m", log_writer.__name__, str(self.log_file)]
        writer += ["--all"] if shows_all else []
        self.writer = Child("log writer", writer, orphan_signal=None, reads=reads)
        command = api_command(host, port)
        self.api = Child("API process", command, orphan_signal=signal.SIGKILL, writes=self._writes)
        command = worker_command(settings.pool)
        # an orphaned worker still writes its checkpoint and releases the job
        self.worker = Child("worker process", command, orphan_signal=signal.SIGTERM, writes=self._writes)
        self.stops = 0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def start(self) -> None:
        """Starts both and waits until the API is ready. Raises CommandError if it does not start."""
        self.writer.start()
        self.api.start()
        self.worker.start()
        deadline = time.monotonic() + READY_SECONDS
        while not self.stops and (problem := unready_reason(self.url)):
            if not self.api.alive:
                raise CommandError("the API process ended while it was starting", hint=f"see {self.log_file}")
            if time.monotonic() > deadline:
                message = f"not ready after {READY_SECONDS:g} s: {problem}"
                raise CommandError(message, hint=f"see {self.log_file}")
            time.sleep(TICK_SECONDS)

    def supervise(self) -> None:
        """Keeps both running until a signal arrives."""
        while not self.stops:
            for child in (self.writer, self.api, self.worker):
                child.restart_if_ended(self.log)
            time.sleep(TICK_SECONDS)

    def drain(self) -> None:
        """Stops the worker, then the API; a second signal, or running out of time, kills them."""
        if self.worker.alive:
            self.log("stopping: a running job writes a checkpoint first (a second signal kills it)")
        self._stop(self.worker, self.settings.stop_grace_seconds + 30)
        self._stop(self.api, API_DRAIN_SECONDS)
        os.close(self._writes)
        with suppress(subprocess.TimeoutExpired):
            if self.writer.process is not None:
                self.writer.process.wait(WRITER_SECONDS)
        self.writer.kill()

    def log(self, message: str) -> None:
        """Shows a message of this process, and adds it to the log."""
        with suppress(OSError):  # the terminal may be gone
            os.write(sys.stderr.fileno(), f"grpo up: {message}\n".encode())
        timestamp = datetime.now(UTC).isoformat()
        line = {"event": message, "level": "warning", "logger": "grpo up", "timestamp": timestamp}
        with suppress(OSError), self.log_file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _stop(self, child: Child, seconds: float) -> None:
        child.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while child.alive and self.stops < 2 and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)
        child.kill()


def up(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every line of the log.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start the embedded service: API and one worker, with all data under $GRPO_HOME.

    Shows jobs that start and end, warnings and errors; the whole log is in $GRPO_HOME/logs/up.jsonl.
    """
    for name, value in RECOVERY.items():
        os.environ.setdefault(name, value)
    settings = private_settings()
    if settings.mode != "embedded":
        hint = "unset GRPO_MODE, or start a production deployment with `grpo serve` and a worker"
        raise CommandError("GRPO_MODE is production, but `grpo up` starts embedded mode only", hint=hint)
    for name in unknown_variables(os.environ):
        note(f"warning: {name} has no effect: no setting has this name", "yellow")
    with only_one(settings.home):
        port = usable_port(host, port)
        refuse_full_disk(settings)
        migrate_database(settings)
        write_first_key(settings)
        embedded = Embedded(settings, host, port, shows_all=verbose)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, embedded.on_signal)
        try:
            embedded.start()
            if not embedded.stops:
                _announce(embedded, as_json)
            embedded.supervise()
        finally:
            embedded.drain()


def _announce(embedded: Embedded, as_json: bool) -> None:
    url, key_file, log = embedded.url, str(embedded.settings.key_file), str(embedded.log_file)
    pids = {"api_pid": embedded.api.pid, "worker_pid": embedded.worker.pid}
    text = f"Ready: {url}  (API documentation: {url}/docs)"
    text += f"\nKey:   {key_file}  (for the browser; grpo reads it itself)\nLog:   {log}"
    print_line({"url": url, "key_file": key_file, "log_file": log, **pids}, text, as_json=as_json)


def unready_reason(url: str) -> str | None:
    """Why the API is not ready: its failed checks; None if it is."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=2, trust_env=False)
    except httpx.TransportError:
        return "no answer"
    if answer.status_code == 200:
        return None
    checks = answer.json()["checks"].items()
    return ", ".join(f"{name}: {found}" for name, found in checks if found not in ("ok", "none"))


def log_file(settings: Settings) -> Path:
    """Path of the log; creates its folder."""
    folder = settings.home / "logs"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder / "up.jsonl"


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Holds the home's lock until the process ends. Raises CommandError if another `grpo up` holds it."""
    with opened_lock(home) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = f" (pid {pid})" if (pid := lock.read().strip()) else ""
            message, hint = f"`grpo up` already runs on {home}{holder}", "set GRPO_HOME to another folder"
            raise CommandError(message, code="home_in_use", hint=hint) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def opened_lock(home: Path) -> IO[str]:
    """The file for the lock, in a home that is created if missing. Raises CommandError."""
    with explained_home(home):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if home.stat().st_uid == os.geteuid():
            # an existing one may be open to all users
            home.chmod(0o700)
        return (home / "up.lock").open("a+")


def usable_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises CommandError if it is not possible to listen on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # as the server does: a port whose last connections are still closing is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}"
            is_foreign = isinstance(error, socket.gaierror) or getattr(error, "errno", 0) == EADDRNOTAVAIL
            hint = "choose another with --port, or 0 for a free one"
            if is_foreign:
                hint = "--host takes an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0"
            raise CommandError(message, code="port_unusable", hint=hint) from error
        return int(probe.getsockname()[1])


def refuse_full_disk(settings: Settings) -> None:
    """Raises CommandError if the API would not become ready because its disk is full."""
    from service.ops.health import disk_check

    if (found := disk_check(settings)) != "ok":
        hint = "free some space, or lower GRPO_MIN_FREE_DISK_BYTES"
        raise CommandError(f"{settings.home}: {found}", code="disk_full", hint=hint)


def write_first_key(settings: Settings) -> None:
    """Creates the first key if the home has none: a file of mode 600 that appears complete or not at all."""
    if settings.key_file.exists():
        return
    from service.web.auth import create_key

    with database_of(settings) as database, database.transaction() as session:
        key = create_key(session, "default", name="grpo up")
    partial = settings.key_file.with_suffix(".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(descriptor)
    partial.rename(settings.key_file)
