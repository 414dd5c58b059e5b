"""One grading process. It gets one request at a time, as a line, and must return a line within a deadline.

After any failure the whole process group is killed and the next request starts another process.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NoReturn

from grpo_engine.sandbox import unsafe

MAX_ANSWER_BYTES = 2**20
START_SECONDS = 300.0
"""Enough to load what the graders need, at most a reward model, on a busy machine."""
_ALLOWED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH"),
    unsafe.VARIABLE,
    # for reward models: their folders and device; no token
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
)
# a fixed hash seed keeps the order of sympy's sets equal in all processes
_FIXED = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


class ChildError(Exception):
    """No answer: the process crashed or was killed for an invalid answer, or the request has no JSON form."""


class ChildTimeoutError(ChildError):
    """The process did not answer in time and was killed."""


class GradingChild:
    """A grading process that is started when it is first needed and replaced when it fails.

    `request` is called by one thread at a time, `interrupt` by any.
    """

    def __init__(self, start_message: Mapping[str, Any], command: Sequence[str]) -> None:
        self._start_message = start_message
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._interrupted = False

    @property
    def pid(self) -> int | None:
        """Process id, also of its session and process group; None if none runs."""
        process = self._process
        return None if process is None else process.pid

    def request(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer with the same `id`. Raises ChildError; CancelledError if interrupted."""
        line = _encoded(message)
        answer = self._exchange(self._connected(), line, seconds)
        if answer.get("id") != message["id"]:
            self._fail("the grading process answered another request")
        return answer

    def interrupt(self) -> None:
        """Kill the process for good, even while `request` waits for it."""
        with self._lock:
            self._interrupted = True
            self._kill()

    def close(self) -> None:
        """Kill the process and close the connection. Must not be called while `request` runs."""
        with self._lock:
            self._kill()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> socket.socket:
        """A connection to a running process that has sent nothing unrequested."""
        if self._connection is not None and _is_quiet(self._connection):
            return self._connection
        self.close()
        try:
            connection = self._start()
        except OSError as error:
            self._fail(f"no grading process could be started: {error.strerror}")
        started = self._exchange(connection, _encoded(self._start_message), START_SECONDS)
        if not started.get("ready"):
            self._fail(f"the grading process could not start: {str(started.get('error'))[:1000]}")
        return connection

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            self._connection = ours
            if self._interrupted:
                raise CancelledError
            self._process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ALLOWED if name in os.environ} | _FIXED,
                start_new_session=True,
            )
        return ours

    def _exchange(self, connection: socket.socket, line: bytes, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        try:
            connection.settimeout(seconds)
            connection.sendall(line)
            return _decoded(_read_line(connection, until))
        except TimeoutError:
            self._fail(f"no answer within {seconds:g} seconds", ChildTimeoutError)
        except EOFError:
            self._fail("the grading process ended")
        except OSError as error:
            self._fail(f"the grading process is unreachable: {error.strerror}")
        except ValueError as error:
            self._fail(str(error))

    def _fail(self, message: str, kind: type[ChildError] = ChildError) -> NoReturn:
        process = self._process
        self.close()
        if self._interrupted:
            raise CancelledError
        ending = "" if kind is ChildTimeoutError or process is None else f" ({_ending(process.returncode)})"
        raise kind(message + ending) from None

    def _kill(self) -> None:
        """Kill the process and all it started, and reap it. Nothing else does, so its id is not reused
        before."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def _is_quiet(connection: socket.socket) -> bool:
    """Whether the other side is connected and has sent nothing."""
    connection.settimeout(0)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_line(connection: socket.socket, until: float) -> bytes:
    """Read a line. Raises TimeoutError, EOFError, OSError, ValueError (too long)."""
    received = bytearray()
    while not received.endswith(b"\n"):
        connection.settimeout(max(until - time.monotonic(), 1e-6))
        chunk = connection.recv(65_536)
        if not chunk:
            raise EOFError
        received += chunk
        if len(received) > MAX_ANSWER_BYTES:
            raise ValueError(f"the grading process answered more than {MAX_ANSWER_BYTES} bytes")
    return bytes(received)


def _encoded(data: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(data).encode() + b"\n"
    except (TypeError, ValueError, RecursionError):
        raise ChildError("the completion or its row has no JSON form") from None


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("the grading process did not answer with JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the grading process did not answer with an object")
    return found


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
