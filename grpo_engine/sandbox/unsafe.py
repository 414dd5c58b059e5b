"""Untrusted code where no sandbox holds: a plain process with limits, if the operator says so for one tenant.

A worker tells its engines so, by VARIABLE, where it was told GRPO_UNSAFE_GRADERS. It is no wall: the code
reaches the network, and reads and changes what its user may. What still holds: a process and a folder of its
own, limits of time, memory and output, no privilege (started as root it is nobody), an end with its owner,
and a verdict from outside.
Boundary: how it is started and ended; who may use it is the service's to decide. Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile

from grpo_engine.sandbox.launch import FLAGS, UNPRIVILEGED_UID, Interpreter, interpreters, program, setpriv
from grpo_engine.sandbox.memory import family

VARIABLE = "GRPO_WITHOUT_SANDBOX"
MAX_PROCESSES = 1024
"""The kernel counts those of the whole user, and the worker's own may be among them."""
_ROUNDS = 10


def allowed() -> bool:
    """Whether this engine may run untrusted code without a sandbox, where none holds."""
    return os.environ.get(VARIABLE) == "1"


def plain_interpreter() -> Interpreter | None:
    """The Python that it gets; None where this is root and nobody else may read any."""
    usable = (each for each in interpreters() if os.geteuid() != 0 or not each.hidden)
    found = next(usable, None)
    return found and found._replace(contained=False)


def plain_command(interpreter: Interpreter, folder: str, *arguments: str) -> list[str]:
    """Argument list that becomes the interpreter: its pid is the process's own. To start in the folder."""
    run = [interpreter.executable, *FLAGS, *arguments]
    environment = [program("env"), "-i", f"HOME={folder}", "LANG=C.UTF-8", "PYTHONHASHSEED=0"]
    return [*setpriv("--pdeathsig=KILL", "--no-new-privs"), *environment, *run]


def make_folder() -> str:
    """A new folder that the code may write to; whoever ends the process removes it."""
    folder = tempfile.mkdtemp(prefix="grpo-unsafe-")
    if os.geteuid() == 0:
        os.chown(folder, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    return folder


def end_family(pid: int) -> None:
    """Ends all below a process, and then it. What one of them starts meanwhile is found in the next round."""
    for _ in range(_ROUNDS):
        below = list(family(pid))[1:]
        for each in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not below:
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
