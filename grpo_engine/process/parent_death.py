"""Processes that end with the process that started them (Linux: PR_SET_PDEATHSIG).

The kernel binds a child to the *thread* that started it, so that must be the parent's main thread. Other
systems only check once, at the start. `python -I -S parent_death.py PID COMMAND…` binds itself and becomes
the command; this file imports the standard library only, to start in milliseconds.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; exit if it has already ended."""
    if _libc is not None and _libc.prctl(PR_SET_PDEATHSIG, int(number)) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def dies_with_this_process(number: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` that binds the child to this process; for parents without threads."""
    parent = os.getpid()
    return lambda: end_with_parent(parent, number)


def bound_command(command: Sequence[str]) -> list[str]:
    """The command, started through this program: a `preexec_fn` is unsafe in a parent with threads."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606
