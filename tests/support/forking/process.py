"""A process that a server of this folder has forked."""

import os
import signal
import socket
from contextlib import suppress


class Process:
    """A forked process and the connection that requested it, which gets its id and later its exit code."""

    def __init__(self, pid: int, connection: socket.socket, *, ends_alone: bool) -> None:
        self.pid, self.connection, self.ends_alone = pid, connection, ends_alone
        self.is_wanted = True
        self.ended = os.pidfd_open(pid)
        self._send(pid)

    @property
    def files(self) -> list[int]:
        """Readable once the process has ended or its connection was closed."""
        return [self.ended, self.connection.fileno()] if self.is_wanted else [self.ended]

    def kill(self) -> None:
        self.is_wanted = False
        self._kill_group()
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        self._kill_group()  # what it has left running
        self._send(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
        self.close()

    def close(self) -> None:
        self.connection.close()
        os.close(self.ended)

    def _kill_group(self) -> None:
        if not self.ends_alone:
            with suppress(ProcessLookupError):  # it has no group yet, or nothing is left of it
                os.killpg(self.pid, signal.SIGKILL)

    def _send(self, number: int) -> None:
        with suppress(OSError):
            self.connection.send(str(number).encode())
