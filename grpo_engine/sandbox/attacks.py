"""The attacks that the self-test runs inside the sandbox; each must fail.

`stdin` is JSON and names the attack. `report` prints for each attack whether it was contained. The others
must be ended from outside: `flood` prints without end, `loop` never ends, `daemon` leaves a process behind.
`guest_modes.py` runs this file's text, so it imports the standard library only.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEW_USER_NAMESPACE, NEW_NETWORK = 0x10000000, 0x40000000
PR_GET_SECCOMP, FILTERED = 21, 2
PLENTY = 200
TOO_MUCH_MEMORY = 8 * 2**30
DEVICES = {"full", "null", "random", "tty", "urandom", "zero", "console", "core", "fd", "ptmx", "pts", "shm"}
DEVICES |= {"stderr", "stdin", "stdout"}
HOST_DEVICES = ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/nvidiactl")
NAMES = {"HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PWD", "PYTHONHASHSEED"}


def refused(action: Callable[..., Any], *arguments: Any) -> bool:
    try:
        action(*arguments)
    except (OSError, MemoryError, ValueError):
        return True
    return False


def forks_end() -> bool:
    """Whether forking is refused at some point. Kills the forked processes."""
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


def calls_fail(libc: ctypes.CDLL) -> bool:
    """Whether the filter is active, which refuses even system calls that need no privilege."""
    calls = (
        libc.ptrace(0, 0, 0, 0),
        libc.personality(0xFFFFFFFF),
        libc.memfd_create(b"x", 0),
        libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0),
        libc.setns(0, 0),
        libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
        libc.shmget(0, 4096, 0o1600),
        libc.inotify_init1(0),
    )
    return libc.prctl(PR_GET_SECCOMP) == FILTERED and set(calls) == {-1}


def others_are_hidden() -> bool:
    """Whether only the first process, the fork server and this process are visible and readable.

    Outside a namespace process ids are high or, in a container, other low ids exist too.
    """
    environments = (f"/proc/{each}/environ" for each in ("self", 1, os.getppid()))
    alone = os.getpid() < PLENTY and sum(map(is_there, range(1, PLENTY))) <= 3
    return alone and all(refused(open, path, "rb") for path in environments)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def only_its_pipes() -> bool:
    """Whether the standard streams and the answer's two pipes are the only open descriptors."""
    kinds: list[bool] = []
    for descriptor in range(3, 1024):
        try:
            kinds.append(stat.S_ISFIFO(os.fstat(descriptor).st_mode))
        except OSError:
            continue
    return len(kinds) <= 2 and all(kinds)


def limits_hold() -> bool:
    """Whether there is no core file and no limit can be raised."""
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)
    higher = all(refused(resource.setrlimit, kind, (2**40, 2**40)) for kind in kinds)
    return higher and resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)


def times_stay() -> bool:
    """Whether a file's times cannot be changed; on a device, other sandboxes would see the change."""
    os.utime(0, (1, 1))
    return os.fstat(0).st_mtime != 1


def connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


def attack_results(request: dict[str, Any]) -> dict[str, bool]:
    """Attack → whether it was contained. `request`: files and an abstract socket of the host."""
    libc = ctypes.CDLL(None)
    host_files = ["/etc/passwd", "/etc/hostname", "/proc/self/status", "/sys/kernel", *request["files"]]
    writes = ["/x", "/usr/lib/x", "/dev/shm/x", "/proc/sys/kernel/core_pattern", sys.executable]  # noqa: S108
    clone = [libc.unshare(flag) for flag in (NEW_USER_NAMESPACE, NEW_NETWORK)]
    return {
        "network": refused(socket.create_connection, ("192.0.2.1", 53), 1.0),
        "sockets": refused(connect, "\0" + request["socket"]),
        "host_files": all(refused(os.stat, path) for path in host_files),
        "writes": all(refused(open, path, "ab") for path in writes),
        "times": times_stay(),
        "devices": set(os.listdir("/dev")) <= DEVICES and not any(map(os.path.exists, HOST_DEVICES)),
        "root": os.getuid() != 0 and os.geteuid() != 0 and refused(os.setuid, 0),
        "namespaces": set(clone) == {-1},
        "system_calls": calls_fail(libc),
        "processes": others_are_hidden(),
        "environment": os.environ.keys() <= NAMES,
        "descriptors": only_its_pipes(),
        "limits": limits_hold(),
        "memory": refused(bytearray, TOO_MUCH_MEMORY),
        "fork_bomb": forks_end(),
    }


def main() -> None:
    request = json.load(sys.stdin)
    if request["attack"] == "flood":
        while True:
            os.write(1, bytes(65_536))
    if request["attack"] == "daemon" and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    while request["attack"] == "loop":
        Path("/").exists()
    print(json.dumps(attack_results(request) if request["attack"] == "report" else {}))


main()
