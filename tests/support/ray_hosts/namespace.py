"""Network namespaces as open files (Linux, root).

They have no names: this process holds them open, so the kernel removes them, their links and addresses
with the last process that uses them, even after SIGKILL. `nsenter --net=/proc/PID/ns/net` enters the one
of a process.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.servers import wait_until

CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace, as an open file."""

    def __init__(self) -> None:
        with _back_to_own():
            _check(_libc.unshare(CLONE_NEWNET))
            self.file = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.inode = os.fstat(self.file).st_ino
        self.ip("link", "set", "lo", "up")

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.file}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The sockets and child processes that this thread creates belong to the namespace."""
        with _back_to_own():
            _check(_libc.setns(self.file, CLONE_NEWNET))
            yield

    def ip(self, *arguments: str) -> str:
        """Output of an `ip` command. Raises RuntimeError with its error message."""
        with self.entered():
            return run_ip(*arguments)

    def pids(self) -> list[int]:
        """Live processes in it."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _inode(path) == self.inode]

    def kill(self) -> None:
        """Send SIGKILL to all its processes until there are none."""

        def is_empty() -> bool:
            for pid in (found := self.pids()):
                _send_kill(pid, self.inode)
            return not found

        wait_until(is_empty, 120, "no process is left in the namespace")

    def close(self) -> None:
        self.kill()
        self.inode = 0  # the kernel gives the number to other namespaces
        os.close(self.file)


def run_ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _back_to_own() -> Iterator[None]:
    """Bring this thread back to the namespace it is in now."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _check(_libc.setns(own, CLONE_NEWNET))
        os.close(own)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "network namespaces need root (CAP_SYS_ADMIN)")


def _inode(process: Path) -> int | None:
    """Inode of a process's network namespace; None for zombies and ended ones."""
    try:
        return (process / "ns" / "net").stat().st_ino
    except OSError:
        return None


def _send_kill(pid: int, inode: int) -> None:
    """Kill a process if it is still in this namespace: its id may be another process's by now."""
    with suppress(ProcessLookupError):  # it has ended
        handle = os.pidfd_open(pid)
        try:
            if _inode(Path(f"/proc/{pid}")) == inode:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
