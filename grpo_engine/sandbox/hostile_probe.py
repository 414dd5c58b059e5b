"""What the self-test runs inside the sandbox: each probe is an attack that must fail.

Prints `{probe: contained?}` as JSON. `guest_modes.py` runs this file's text, so it imports the standard
library only. `stdin` is a JSON list of host files that must not be there.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

NEW_USER_NAMESPACE = 0x10000000
PLENTY = 200
TOO_MUCH_MEMORY = 8 * 2**30


def refused(action: Callable[..., Any], *arguments: Any) -> bool:
    try:
        action(*arguments)
    except (OSError, MemoryError):
        return True
    return False


def forks_end() -> bool:
    """Forks until it is refused, then ends them all."""
    children: list[int] = []
    try:
        while len(children) < PLENTY:
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except OSError:
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return False


def main() -> None:
    libc = ctypes.CDLL(None)
    host_files = ["/etc/passwd", "/etc/hostname", "/proc/self/status", *json.load(sys.stdin)]
    writes = ["/x", "/usr/lib/x", "/dev/shm/x", "/proc/sys/kernel/core_pattern", sys.executable]  # noqa: S108
    found = {
        "network": refused(socket.create_connection, ("192.0.2.1", 53), 1.0),
        "host_files": all(refused(open, path) for path in host_files),
        "writes": all(refused(open, path, "ab") for path in writes),
        "root": os.getuid() != 0 and os.geteuid() != 0 and refused(os.setuid, 0),
        "namespaces": libc.unshare(NEW_USER_NAMESPACE) == -1,
        "memory": refused(bytearray, TOO_MUCH_MEMORY),
        "fork_bomb": forks_end(),
    }
    print(json.dumps(found))


main()
