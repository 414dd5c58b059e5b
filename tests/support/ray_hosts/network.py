"""Hosts as network namespaces on a bridge, with links that can be cut (Linux, root, iproute2).

Namespaces have no names: this process holds them open, so the kernel removes them, their links and addresses
with the last process that uses them, even after SIGKILL. Only the network is separate: hosts share files and
process ids. `nsenter --net=/proc/PID/ns/net` enters the host of a process.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Self

from grpo_engine.process.parent_death import dies_with_this_process
from tests.support.servers import wait_until

CLONE_NEWNET = 0x40000000
RANGE = IPv4Network("10.64.0.0/10")
"""Each network takes 256 addresses of it."""
Process = subprocess.Popen[bytes]

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

        wait_until(is_empty, 30, "no process is left in the namespace")

    def close(self) -> None:
        self.kill()
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
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _inode(Path(f"/proc/{pid}")) == inode:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


class Host:
    """A namespace with one interface, `eth0`, whose other end is a port of the bridge."""

    def __init__(self, namespace: Namespace, switch: Namespace, port: str, address: IPv4Address) -> None:
        self.namespace = namespace
        self.address = str(address)
        self._switch = switch
        self._port = port
        self._started: list[Process] = []
        switch.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace.path)
        switch.ip("link", "set", port, "master", "bridge", "up")
        namespace.ip("address", "add", f"{address}/24", "dev", "eth0")
        namespace.ip("link", "set", "eth0", "up")

    def popen(self, command: Sequence[str], **options: Any) -> Process:
        """Start a process in the host. Its id is the program's own; it ends with this process."""
        with self.namespace.entered():
            process = subprocess.Popen(command, preexec_fn=dies_with_this_process(signal.SIGKILL), **options)
        self._started.append(process)
        return process

    def run(self, command: Sequence[str], seconds: float = 60, **options: Any) -> str:
        """Output of a program in the host. Raises RuntimeError with it if the program fails."""
        process = self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        output = process.communicate(timeout=seconds)[0].decode(errors="replace")
        if process.returncode:
            raise RuntimeError(f"{command[0]} returned {process.returncode}: {output[-2000:]}")
        return output

    def pids(self) -> list[int]:
        """Live processes in it."""
        return self.namespace.pids()

    def kill(self) -> None:
        """Send SIGKILL to all its processes, as if the machine had lost power. The link remains."""
        self.namespace.kill()
        for process in self._started:
            process.wait(timeout=30)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._started.clear()

    def link_down(self) -> None:
        """Take its port off the bridge: packets are lost, and neither side gets an error."""
        self._switch.ip("link", "set", self._port, "nomaster")

    def link_up(self) -> None:
        """Put its port back."""
        self._switch.ip("link", "set", self._port, "master", "bridge")


class Network:
    """Hosts on a bridge that this process reaches too. Use as a context manager.

    The index of its interface selects the range of addresses, so two networks never share one.
    """

    def __init__(self, num_hosts: int) -> None:
        self.hosts: list[Host] = []
        self.interface = ""
        self._num_hosts = num_hosts
        self._namespaces: list[Namespace] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        switch = self._new_namespace()
        switch.ip("link", "add", "bridge", "type", "bridge")
        switch.ip("link", "set", "bridge", "up")
        self.range = self._connect_this_process(switch)
        for number in range(1, self._num_hosts + 1):
            self.hosts.append(Host(self._new_namespace(), switch, f"port{number}", self.range[number]))

    def _connect_this_process(self, switch: Namespace) -> IPv4Network:
        """Give the namespace of this process the last address of an unused range. Returns the range."""
        name = f"grpo{os.getpid()}-{switch.file}"
        run_ip("link", "add", name, "type", "veth", "peer", "name", "outside", "netns", switch.path)
        self.interface = name
        switch.ip("link", "set", "outside", "master", "bridge", "up")
        index = int(Path(f"/sys/class/net/{name}/ifindex").read_text())
        first = RANGE[index * 256 % RANGE.num_addresses]
        chosen = IPv4Network(f"{first}/24")
        self.address = str(chosen[254])
        run_ip("address", "add", f"{self.address}/24", "dev", name)
        run_ip("link", "set", name, "up")
        return chosen

    def _new_namespace(self) -> Namespace:
        self._namespaces.append(Namespace())
        return self._namespaces[-1]

    def __exit__(self, *_error: object) -> None:
        for host in self.hosts:
            host.kill()
        if self.interface:
            run_ip("link", "delete", self.interface)
        for namespace in self._namespaces:
            namespace.close()
