"""Untrusted code without a sandbox: a plain process with limits, if the operator allows it for one tenant.

A worker with GRPO_UNSAFE_GRADERS sets VARIABLE for its engines. This does not contain the code, which can
reach the network and read and change whatever its user may. It still has its own process and folder, limits
of time, memory and output, and no privileges (root becomes an unprivileged user); it ends with its parent,
and its result is judged outside. Linux only.
"""

import contextlib
import os
import signal
import tempfile

from grpo_engine.sandbox.launch import FLAGS, UNPRIVILEGED_UID, Interpreter, interpreters, program, setpriv
from grpo_engine.sandbox.memory import process_tree

VARIABLE = "GRPO_WITHOUT_SANDBOX"
MAX_PROCESSES = 1024
"""A high limit, because the kernel counts all processes of the user, which may include the worker's."""
_ROUNDS = 10


def allowed() -> bool:
    """Whether this engine may run untrusted code without a sandbox."""
    return os.environ.get(VARIABLE) == "1"


def plain_interpreter() -> Interpreter | None:
    """The Python for such code; None if this process is root and no other user may read one."""
    usable = (each for each in interpreters() if os.geteuid() != 0 or not each.hidden)
    found = next(usable, None)
    return found and found._replace(contained=False)


def plain_command(interpreter: Interpreter, folder: str, *arguments: str) -> list[str]:
    """Command that becomes the interpreter, with the same pid. It must be started in the folder."""
    run = [interpreter.executable, *FLAGS, *arguments]
    environment = [program("env"), "-i", f"HOME={folder}", "LANG=C.UTF-8", "PYTHONHASHSEED=0"]
    return [*setpriv("--pdeathsig=KILL", "--no-new-privs"), *environment, *run]


def make_folder() -> str:
    """A new folder that the code may write to; `Sandbox.close` removes it."""
    folder = tempfile.mkdtemp(prefix="grpo-unsafe-")
    if os.geteuid() == 0:
        os.chown(folder, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    return folder


def kill_process_tree(pid: int) -> None:
    """Kill a process's descendants, then the process. Later rounds find those that were started meanwhile."""
    for _ in range(_ROUNDS):
        below = list(process_tree(pid))[1:]
        for each in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not below:
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
