"""Runs between the worker and its engine: makes sure that the engine dies with the worker, then becomes it.

A program of its own, started with `python -I -S`, because asking for a parent-death signal must happen in
the child, and running Python between fork and exec is not safe in a process with threads.
Arguments: the worker's pid, then the command.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(worker_pid: int, command: list[str]) -> None:
    """Never returns. Exits with 1 where the worker is gone already: then nobody would send the signal."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")
    if os.getppid() != worker_pid:
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
