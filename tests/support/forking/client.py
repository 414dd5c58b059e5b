"""Starts processes through two servers of this folder, for API and worker, each started when first needed."""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from grpo_engine.process.parent_death import dies_with_this_process

ROOT = Path(__file__).parents[3]


class Forked:
    """What tests use of `subprocess.Popen`, of a process that the server has forked."""

    def __init__(self, ending: IO[bytes]) -> None:
        self._ending = ending
        self.pid = int(ending.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._ending], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._ending:
                self.returncode = int(self._ending.readline())
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


def start(arguments: Sequence[str], environment: Mapping[str, str], output: int) -> Forked:
    """`python -m ARGUMENTS…` in the root folder; `output` is a descriptor for both its outputs."""
    reader, writer = os.pipe()
    request = {"arguments": list(arguments), "environment": dict(environment), "folder": str(ROOT)}
    program = "service" if arguments[0] == "service" else "worker"
    socket.send_fds(_server(program), [json.dumps(request).encode()], [output, writer])
    os.close(writer)
    return Forked(os.fdopen(reader, "rb", buffering=0))


@functools.cache
def _server(program: str) -> socket.socket:
    """Ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forking.server", program, str(theirs.fileno())],
        env=os.environ | {"PYTHONPATH": str(ROOT), "GRPO_FAULT": "job.claimed:sleep=0"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        preexec_fn=dies_with_this_process(signal.SIGKILL),
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
