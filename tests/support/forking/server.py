"""`python -m tests.support.forking.server PROGRAM SOCKET RUN …`: forks a `python -m MODULE …` per connection.

It ends with the process RUN and then removes the socket's folder.

Each process has the environment, folder, descriptors and arguments of its request, and runs the module from
its first line. Only what it imports is there already, and the sandbox's self-test is done. GRPO_FAULT must be
set, so that fault points are there; each process reads its own faults. A connection receives the process id
and later the exit code; one that is closed before kills its process.

PROGRAM `tests` imports the tests that the further arguments name to pytest, and forks `python -c CODE`.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from grpo_engine.process import fault_points
from grpo_engine.process.fault_points import Faults, parse_faults
from grpo_engine.process.parent_death import end_with_parent
from grpo_engine.process.setup import set_library_defaults, without_garbage_collector
from grpo_engine.run.prestart import LOADED_AHEAD
from tests.support.forking.process import Process

DATABASES = ("psycopg", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite")
SERVICE = (
    *DATABASES,
    "service.__main__",
    "service.app",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.h11_impl",
)
COMMAND = "service.cli"
"""The module whose processes start others with the same program."""
MODULES = {
    "service": SERVICE,
    "embedded": (*SERVICE, f"{COMMAND}.main", f"{COMMAND}.operate.up", "worker.__main__"),
    "worker": (
        *DATABASES,
        "celery.__main__",
        "celery.apps.worker",
        "celery.bin.celery",
        "celery.concurrency.prefork",
        "celery.fixups.django",
        "celery.worker.autoscale",
        "celery.worker.components",
        "celery.worker.consumer",
        "celery.worker.strategy",
        "kombu.transport.redis",
        "worker.__main__",
    ),
    "engine": (
        *LOADED_AHEAD,
        "grpo_engine.__main__",
        "grpo_engine.serve.serving",
        "tests.support.either_engine",
        "tests.support.fake_serving",
    ),
}
"""What each program imports."""
VLLM = ("vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker")
"""Imported for engines too, if installed."""
MAX_REQUEST_BYTES = 2**20
MAX_DESCRIPTORS = 64
FREE_DESCRIPTOR = 500
"""Higher than every descriptor of this program and its processes."""


class Server:
    """Forks a process for each connection until the process `run` has ended."""

    def __init__(self, path: Path, run: int) -> None:
        self._run = run
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"{path}.new")
        self._listener.listen()
        os.rename(f"{path}.new", path)
        self._connections: list[socket.socket] = []
        """Those without a request so far."""
        self._processes: list[Process] = []

    def serve(self) -> list[str] | None:
        """Returns in each requested process its arguments; None at the end."""
        while self._run not in (ready := self._ready()):
            for process in list(self._processes):
                self._attend(process, ready)
            for connection in [each for each in self._connections if each.fileno() in ready]:
                self._connections.remove(connection)
                if (arguments := self._fork(connection)) is not None:
                    return arguments
            if self._listener.fileno() in ready:
                self._connections.append(self._listener.accept()[0])
        return None

    def _ready(self) -> set[int]:
        files = [self._run, self._listener.fileno(), *(each.fileno() for each in self._connections)]
        for process in self._processes:
            files += process.files
        return set(select.select(files, [], [])[0])

    def _attend(self, process: Process, ready: set[int]) -> None:
        if process.ended in ready:
            self._processes.remove(process)
            process.reap()
        elif ready.intersection(process.files):
            process.kill()

    def _fork(self, connection: socket.socket) -> list[str] | None:
        """Fork the process that the connection requests. Returns its arguments, in it."""
        content, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        if not content:  # it was closed before its request
            connection.close()
            return None
        request, server = json.loads(content), os.getpid()
        if (pid := os.fork()) == 0:
            connection.close()
            self._close()
            become(request, server, descriptors)
            arguments: list[str] = request["arguments"]
            return arguments
        for descriptor in descriptors:
            os.close(descriptor)
        self._processes.append(Process(pid, connection, ends_alone=request["ends_alone"]))
        return None

    def _close(self) -> None:
        """Close all its files, in a forked process."""
        self._listener.close()
        os.close(self._run)
        for each in (*self._connections, *self._processes):
            each.close()


def serve(path: Path, run: int) -> list[str]:
    """Fork for each connection until `run` has ended. Returns in the requested process: its arguments."""
    server = Server(path, run)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the one who waits reads an end of file
    arguments = server.serve()
    if arguments is None:
        shutil.rmtree(path.parent)
        os._exit(0)
    return arguments


def become(request: Mapping[str, Any], parent: int, descriptors: Sequence[int]) -> None:
    """Take over the request's environment, folder and open files."""
    end_with_parent(parent, signal.SIGKILL)
    if request["own_session"]:
        os.setsid()
    given = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, FREE_DESCRIPTOR) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(given, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # that of the new environment
    os.chdir(request["folder"])
    os.umask(request["umask"])
    if request["arguments"][0] == COMMAND:
        sys.executable = request["program"]


def read_faults() -> None:
    """The fault points of this process are those of its environment."""
    faults = fault_points.fault_point
    assert isinstance(faults, Faults), "GRPO_FAULT of the server"
    faults.faults = parse_faults(os.environ.get("GRPO_FAULT", ""))
    marks = os.environ.get("GRPO_FAULT_MARKS")
    faults.marks = Path(marks) if marks else None


def import_tests(arguments: Sequence[str]) -> None:
    """As pytest does, which rewrites their asserts. Each forked process collects them again, in a second.

    Nothing is captured: alembic keeps the standard output that it finds when imported.
    """
    import pytest

    pytest.main([*arguments, "--collect-only", "--numprocesses", "0", "--capture", "no"])


def import_program(program: str) -> None:
    set_library_defaults()
    with without_garbage_collector():
        import_modules(program)
    from grpo_engine.sandbox import self_test

    self_test()  # cached


def import_modules(program: str) -> None:
    for name in MODULES[program]:
        importlib.import_module(name)
    if program == "engine" and find_spec("vllm") is not None:
        from grpo_engine.rollout.sampler.vllm.engine import vllm_environment

        with vllm_environment():
            for name in VLLM:
                importlib.import_module(name)


def main() -> None:
    program, path, run = sys.argv[1], Path(sys.argv[2]), os.pidfd_open(int(sys.argv[3]))
    is_tests = program == "tests"
    import_tests(sys.argv[4:]) if is_tests else import_program(program)
    gc.collect()
    gc.freeze()
    arguments = serve(path, run)
    try:
        run_code(*arguments) if is_tests else run_module(*arguments)
    except SystemExit as ended:
        end(ended.code)
    end(0)


def run_code(code: str, *arguments: str) -> None:
    """Run `python -c CODE ARGUMENTS…`."""
    sys.argv = ["-c", *arguments]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(code, vars(sys.modules["__main__"]))


def run_module(module: str, *arguments: str) -> None:
    """Run `python -m MODULE ARGUMENTS…`."""
    read_faults()
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # else runpy warns
    sys.modules.pop(f"{module}.__main__", None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def end(code: str | int | None) -> NoReturn:
    """Exit as Python does, but without destroying the modules, which takes longer than a short job."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # joins the threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
