"""Starts processes through the servers of this folder, one per program, each started when first needed.

The processes of pytest-xdist share them: each server imports its program once for the whole test run. These
processes themselves are forked from one that has imported all tests.
"""

import fcntl
import functools
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
UMASK = 0o022
START_SECONDS = 600
"""Importing all tests takes 15 s of a core, and more time on a busy machine."""
RUN = "TEST_RUN"
"""Environment variable of pytest-xdist's processes: process id and name of the run that started them."""
TESTS = "tests"
"""The server of pytest-xdist's processes."""
BY_SHELL = """#!/bin/sh
'''exec' {python} -IS "$0" "$@"
' '''
"""
"""First lines of a Python program whose interpreter's path may contain spaces, unlike that of `#!`: the shell
runs the second line, which is text to Python."""
SERVERS = {
    "service": "service",
    "bench.gpu.run": "engine",
    "grpo_engine": "engine",
    "tests.engine.families.unreadable": "engine",
    "tests.engine.vllm.sharing_ranks": "engine",
}
"""Module → the server that forks it; others are the worker's."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GRPO_FAULT": "job.claimed:sleep=0"}
"""Of the servers that fork the product: its fault points are there, and do nothing."""


class Forked:
    """What tests use of `subprocess.Popen`, of a process that the server has forked."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(connection.recv(32))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._connection:
                self.returncode = int(self._connection.recv(32))
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(timeout=0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def start(
    arguments: Sequence[str], environment: Mapping[str, str], output: int, *, own_session: bool = False
) -> Forked:
    """`python -m ARGUMENTS…` in the root folder; `output` is a descriptor for both its outputs."""
    request = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": str(ROOT),
        "umask": UMASK,
        "descriptors": [1, 2],
        "own_session": own_session,
        "ends_alone": True,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(_server(SERVERS.get(arguments[0], "worker"))))
    socket.send_fds(connection, [json.dumps(request).encode()], [output, output])
    return Forked(connection)


@functools.cache
def engine_python() -> Path:
    """A `GRPO_ENGINE_PYTHON` whose engines are forked from a process that has imported torch and more."""
    return _python(_server("engine"))


def embedded_python() -> Path:
    """A Python for `-m service.cli up` that forks it and its API, worker and log writer."""
    return _python(_server("embedded"))


def tests_python(arguments: Sequence[str]) -> Path:
    """A Python for pytest-xdist whose processes are forked from one that has imported the tests.

    Call it in the process that starts them, with the arguments that select the tests.
    """
    os.environ[RUN] = f"{os.getpid()} {uuid.uuid4().hex}"
    return _python(_server(TESTS, *arguments))


def _python(socket_path: Path) -> Path:
    """The program beside the socket that has its server fork a process."""
    program = socket_path.with_name(f"python-{os.getpid()}")
    source = Path(__file__).with_name("python.py").read_text()
    program.write_text(BY_SHELL.format(python=shlex.quote(sys.executable)) + source)
    program.chmod(0o755)
    return program


@functools.cache
def _server(program: str, *arguments: str) -> Path:
    """The socket of a server that pytest's processes share and that ends with the test run."""
    run, name = os.environ.get(RUN, f"{os.getpid()} {uuid.uuid4().hex}").split()
    folder = Path(tempfile.gettempdir()) / f"forking-{name}-{program}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            _start_server(program, folder / "socket", run, arguments)
    return folder / "socket"


def _start_server(program: str, path: Path, run: str, arguments: Sequence[str]) -> None:
    """Returns when it listens, because it closes its output then."""
    module = ["-m", "tests.support.forking.server", program, str(path), run, *arguments]
    subprocess.run(
        ["setsid", "--fork", sys.executable, *module],  # may outlive this process of pytest-xdist
        env=os.environ | {"PYTHONPATH": str(ROOT)} | ({} if program == TESTS else ENVIRONMENT),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=START_SECONDS,
        check=True,
    )
    assert path.exists(), f"the {program} server does not start"
