"""Ports for the servers of tests that bind a given port, some time after it was chosen."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FIRST_PORT = 20_000  # Ray takes lower ones
KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_reserved: list[int] = []
"""Descriptor of a locked file for each port; the lock ends with this process."""


def free_port() -> int:
    """An unused TCP port of 127.0.0.1, which no other test gets while this process runs.

    It is below the ports from which the kernel serves connections and those who bind port 0, because they
    could take it before its server has bound it.
    """
    for port in _candidates():
        if _reserve(port):
            with suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                return port
    with socket.socket() as probe:  # the kernel's ports begin too low
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _candidates() -> Iterator[int]:
    """Ports below the kernel's, in another order in each process."""
    end = int(KERNEL_PORTS.read_text().split()[0]) if KERNEL_PORTS.exists() else FIRST_PORT
    num_ports = max(0, end - FIRST_PORT)
    for number in range(num_ports):
        yield FIRST_PORT + (os.getpid() * 101 + len(_reserved) + number) % num_ports


def _reserve(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / f"grpo-ports-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _reserved.append(lock)
    return True
