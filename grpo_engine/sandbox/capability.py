"""Self-test of the sandbox, which attacks a sandbox instead of comparing versions.

It fails closed: if an attack is not contained or cannot run, there is no sandbox on this machine.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from grpo_engine.sandbox.launch import Interpreter, SandboxUnavailable, command, interpreters
from grpo_engine.sandbox.process import Limits, Sandbox, filter_descriptor, own_text
from grpo_engine.sandbox.unsafe import allowed, plain_interpreter

_SECONDS = 10.0
"""Time limit of an attack; on an idle machine all attacks together take 0.5 s."""
_SHORT_SECONDS = 0.05
_ATTEMPTS = 2
_LIMITS = Limits()
_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
time.sleep(60)
"""


@dataclass(frozen=True)
class Capability:
    """Result of the self-test."""

    interpreter: Interpreter | None
    """The Python for untrusted code; None if there is no sandbox."""
    reason: str = ""
    """Why there is no sandbox."""
    attacks: dict[str, bool] = field(default_factory=dict)
    """Attack → whether it was contained."""

    @property
    def available(self) -> bool:
        return self.interpreter is not None

    def require(self) -> Interpreter:
        """The interpreter. Raises SandboxUnavailable if there is no sandbox."""
        if self.interpreter is None:
            raise SandboxUnavailable(self.reason)
        return self.interpreter


def untrusted_interpreter() -> Interpreter:
    """The Python for untrusted code. Raises SandboxUnavailable if there is no sandbox, unless the operator
    allows running without one (`unsafe.py`)."""
    found = self_test()
    plain = plain_interpreter() if allowed() else None
    return found.interpreter or plain or found.require()


def self_test() -> Capability:
    """Attack a sandbox from inside, with this process's Python and then with the system's.

    The result is cached for the life of the process. A test that could not run, for example because the
    machine was overloaded, is repeated now and, if it fails again, by the next call.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            return _finished_test()
        except SandboxUnavailable as error:
            reason = str(error)
    return Capability(None, reason=reason)


@cache
def _finished_test() -> Capability:
    """The result of the attacks. Raises SandboxUnavailable if an interpreter could not be attacked."""
    leaks: list[str] = []
    not_run: list[str] = []
    for interpreter in interpreters():
        try:
            attacks = _attack(interpreter)
        except (SandboxUnavailable, OSError, ValueError) as error:
            not_run.append(f"{interpreter.executable}: {error}")
            continue
        failed = [name for name, contained in attacks.items() if not contained]
        if not failed:
            return Capability(interpreter, attacks=attacks)
        leaks.append(f"{interpreter.executable}: not contained: {', '.join(failed)}")
    if not_run:
        raise SandboxUnavailable("; ".join(leaks + not_run))
    return Capability(None, reason="; ".join(leaks))


def _attack(interpreter: Interpreter) -> dict[str, bool]:
    """Run all attacks; returns which were contained. Raises SandboxUnavailable if they could not run."""
    sandbox = Sandbox(interpreter, own_text("attacks"), "<attacks>", _LIMITS)
    try:
        unprivileged = sandbox.uid not in (0, None)
        attacks = _attacks_from_inside(sandbox)
        loop, flood, daemon = (
            sandbox.request(seconds, mode="script", stdin=json.dumps({"attack": name}))
            for name, seconds in (("loop", _SHORT_SECONDS), ("flood", _SECONDS), ("daemon", _SECONDS))
        )
    finally:
        sandbox.close()
    return {
        **attacks,
        "endless_loop": loop.timed_out and loop.value is None,
        "output_flood": flood.value is None and len(flood.output) <= _LIMITS.output_bytes + 65_536,
        "left_behind": daemon.value is None and not daemon.reusable,
        "host_root": unprivileged,
        "outliving": _dies_with_its_parent(interpreter),
    }


def _attacks_from_inside(sandbox: Sandbox) -> dict[str, bool]:
    """Results of the attacks from inside. Raises SandboxUnavailable if they did not finish."""
    name = secrets.token_hex(16)
    files = [str(Path(__file__).resolve()), str(Path.home() / ".profile")]
    request = {"attack": "report", "files": files, "socket": name}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        outcome = sandbox.request(_SECONDS, mode="script", stdin=json.dumps(request))
    if outcome.error:
        raise SandboxUnavailable(f"the attacks did not run: {outcome.error}")
    found: dict[str, bool] = json.loads(outcome.output)
    return found


def _dies_with_its_parent(interpreter: Interpreter) -> bool:
    """Whether a sandbox with a daemon, and so its output, ends when the shell that started it is killed."""
    program_fd, null = filter_descriptor(), os.open(os.devnull, os.O_WRONLY)
    try:
        argv = command(interpreter, "-c", _DAEMON, seccomp_fd=program_fd, info_fd=null)
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" & read nothing', "sh", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={},
            pass_fds=(program_fd, null),
        )
    finally:
        os.close(program_fd)
        os.close(null)
    with shell:
        assert shell.stdout is not None
        output = shell.stdout.fileno()
        up = _read_in_time(output)
        shell.kill()
        return up == b"up\n" and _read_in_time(output) == b""


def _read_in_time(descriptor: int) -> bytes | None:
    """The next output; empty at the end of the output; None if nothing arrives in time."""
    with contextlib.closing(selectors.DefaultSelector()) as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return os.read(descriptor, 4096) if selector.select(_SECONDS) else None
