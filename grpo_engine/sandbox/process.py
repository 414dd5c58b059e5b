"""One running sandbox and its protocol with the fork server inside (`guest.py`).

Nothing that comes out is trusted. Answers are limited in size and time and must carry the nonce of their
request; otherwise the sandbox is ended.
"""

import contextlib
import json
import os
import platform
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from grpo_engine.sandbox import seccomp
from grpo_engine.sandbox.launch import Interpreter, SandboxUnavailable, command, inside
from grpo_engine.sandbox.memory import held_bytes
from grpo_engine.sandbox.unsafe import MAX_PROCESSES, kill_process_tree, make_folder, plain_command

_GRACE_SECONDS = 1.0
"""Time after a call's deadline, at which the server inside ends the child, until the sandbox is ended."""
_LOOK_SECONDS = 0.1
"""Interval of the memory checks during a call."""
_MAX_REPLY_BYTES = 16 * 2**20
_NONCE_BYTES = 16
_MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True)
class Limits:
    """Limits of one call, and what the server imports once, before it forks (`preload`)."""

    memory_bytes: int = 2 * 2**30
    """Limit of each process's address space, and of the memory of all processes together."""
    processes: int = 32
    """Maximum processes, threads included."""
    file_bytes: int = 16 * 2**20
    output_bytes: int = 2**20
    """Limit of standard output and error together; more output is an error of the call."""
    value_bytes: int = 2**20
    preload: Sequence[str] = ("collections", "functools", "itertools", "math", "re", "typing")
    left_out: Sequence[str] = ()
    """Modules that are empty inside: preloaded libraries import them, and nothing uses them."""
    packages: Sequence[str] = ()
    """Folders of installed packages that may be imported (`launch.package_folders`)."""
    start_seconds: float = 10.0
    """Time limit of starting the sandbox and of the imports."""


@dataclass(frozen=True)
class Outcome:
    """Result of one call: a value or an error."""

    value: str | None = None
    """JSON text from untrusted code, which must be parsed strictly. None if there is an error."""
    error: str = ""
    """End of the traceback, or why there is no answer; bounded."""
    output: str = ""
    """Standard output; in all modes except `script` also standard error."""
    timed_out: bool = False
    reusable: bool = True
    """False if the sandbox must not be used again."""


class BrokenSandbox(Exception):
    """The sandbox ended or broke the protocol."""


class Sandbox:
    """A started sandbox with one program. Raises SandboxUnavailable if it does not start."""

    def __init__(self, interpreter: Interpreter, source: str, filename: str, limits: Limits) -> None:
        self._folder = None if interpreter.contained else make_folder()
        self._process, self._first = (
            _start_plain(interpreter, self._folder) if self._folder else _start(interpreter, limits.packages)
        )
        self._inside, self.uid = _handle(self._first)
        self._memory_bytes = limits.memory_bytes
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._input, self._output):
            os.set_blocking(descriptor, False)
        settings = {**vars(limits), "modes": own_text("guest_modes"), "source": source, "filename": filename}
        if interpreter.contained:
            settings["packages"] = inside(limits.packages)
        else:
            settings["processes"] = MAX_PROCESSES
        settings["alone"] = interpreter.contained
        try:
            if self._exchange(_message(settings), time.monotonic() + limits.start_seconds) != {"ready": True}:
                raise BrokenSandbox("its first message is not that of the fork server")
        except BrokenSandbox as broken:
            raise SandboxUnavailable(f"the sandbox does not start: {broken}{self._start_error()}") from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def request(self, seconds: float, **fields: Any) -> Outcome:
        """Run the program once, within `seconds` plus one second."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        payload = _message({"seconds": seconds, **fields}) + nonce
        deadline = time.monotonic() + seconds + _GRACE_SECONDS
        try:
            reply = self._exchange(payload, deadline)
            if not secrets.compare_digest(str(reply.get("nonce")), nonce.hex()):
                raise BrokenSandbox("it answered without the nonce")
        except BrokenSandbox as broken:
            self.close()
            late = time.monotonic() >= deadline
            return Outcome(error=f"the sandbox ended: {broken}", timed_out=late, reusable=False)
        return _outcome(reply)

    def close(self) -> None:
        """Kill every process inside and wait for the last. Safe to call twice."""
        if self._folder is not None:
            if self.alive:  # not reaped yet, so its pid cannot belong to another process
                kill_process_tree(self._process.pid)
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._inside is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inside, signal.SIGKILL)
            os.close(self._inside)
            self._inside = None
        with self._process:  # closes its pipes and waits for it
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _exchange(self, payload: bytes, deadline: float) -> dict[str, Any]:
        """Send a message and read one. Raises BrokenSandbox."""
        reply = bytearray()
        waiting = memoryview(payload)
        try:
            while len(reply) < 4 or len(reply) < 4 + int.from_bytes(reply[:4], "big"):
                self._wait(writing=bool(waiting), deadline=deadline)
                waiting = waiting[self._send(waiting) :]
                reply += self._receive()
                if len(reply) > _MAX_REPLY_BYTES:
                    raise BrokenSandbox("its answer is too long")
            answer = json.loads(bytes(reply[4:]))
        except (OSError, ValueError, RecursionError) as error:
            raise BrokenSandbox(str(error)) from None
        if not isinstance(answer, dict):
            raise BrokenSandbox("its answer is not an object")
        return answer

    def _wait(self, *, writing: bool, deadline: float) -> None:
        poller = select.poll()
        poller.register(self._output, select.POLLIN)
        if writing:
            poller.register(self._input, select.POLLOUT)
        while (left := deadline - time.monotonic()) > 0:
            if poller.poll(min(left, _LOOK_SECONDS) * 1000):
                return
            if self._inside is not None and held_bytes(self._first or 0) > self._memory_bytes:
                raise BrokenSandbox(f"its processes used more than {self._memory_bytes:,} bytes in total")
        raise BrokenSandbox("no answer in time")

    def _send(self, data: memoryview) -> int:
        try:
            return os.write(self._input, data) if data else 0
        except BlockingIOError:
            return 0

    def _receive(self) -> bytes:
        try:
            data = os.read(self._output, 2**20)
        except BlockingIOError:
            return b""
        if not data:
            raise BrokenSandbox("no process is left in it")
        return data

    def _start_error(self) -> str:
        """What bubblewrap printed before it ended."""
        self._process.kill()
        assert self._process.stderr is not None
        text = self._process.stderr.read(2000).decode("utf-8", "replace").strip()
        self.close()
        return f" ({text})" if text else ""


def _start(interpreter: Interpreter, packages: Sequence[str]) -> tuple[subprocess.Popen[bytes], int | None]:
    """The process, and the pid of the first process inside; all others end with it."""
    program_fd, info_fd, info_end = filter_descriptor(), *os.pipe()
    try:
        start = ("-c", own_text("guest"))
        argv = command(interpreter, *start, seccomp_fd=program_fd, info_fd=info_end, packages=packages)
        process = _popen(argv, "/", (program_fd, info_end))
    except (OSError, SandboxUnavailable) as error:
        os.close(info_fd)
        raise SandboxUnavailable(f"the sandbox does not start: {error}") from None
    finally:
        os.close(program_fd)
        os.close(info_end)
    return process, _first_process(info_fd)


def _start_plain(interpreter: Interpreter, folder: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the interpreter in this folder without a sandbox. Returns the process and its id."""
    try:
        process = _popen(plain_command(interpreter, folder, "-c", own_text("guest")), folder, ())
    except OSError as error:
        raise SandboxUnavailable(f"its process does not start: {error}") from None
    return process, process.pid


def _popen(argv: list[str], folder: str, descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=folder,
            env={},
            pass_fds=descriptors,
        )

    return _starter(os.getpid()).submit(start).result()


@cache
def _starter(pid: int) -> ThreadPoolExecutor:
    """The thread that starts this process's sandboxes, because the kernel ends a sandbox with that thread."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


def _first_process(info_fd: int) -> int | None:
    """The pid in bubblewrap's `{"child-pid": …}`; None if bubblewrap ended first."""
    with os.fdopen(info_fd, "rb") as info:
        try:
            return int(json.loads(info.read())["child-pid"])
        except (ValueError, KeyError):
            return None


def _handle(pid: int | None) -> tuple[int | None, int | None]:
    """pidfd and host uid of a process; None and None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        return os.pidfd_open(pid or 0), min(map(int, uids))
    except (OSError, StopIteration):
        return None, None


def filter_descriptor() -> int:
    """Read end of a pipe that holds the system-call filter."""
    try:
        program = seccomp.filter_program(platform.machine())
    except KeyError as machine:
        raise SandboxUnavailable(f"there is no system-call filter for {machine}") from None
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        pipe.write(program)
    return read


@cache
def own_text(name: str) -> str:
    """Source of a module of this package that runs inside."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


def _message(fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    return len(body).to_bytes(4, "big") + body


def _outcome(reply: Mapping[str, Any]) -> Outcome:
    value, error = reply.get("value"), reply.get("error", "")
    return Outcome(
        value=None if error or value is None else str(value),
        error=str(error)[-_MAX_ERROR_CHARACTERS:] or ("" if value is not None else "no answer"),
        output=str(reply.get("output", "")),
        timed_out=bool(reply.get("timed_out")),
        reusable=not reply.get("dirty", True),
    )
