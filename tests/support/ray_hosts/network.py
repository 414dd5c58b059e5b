"""Hosts as network namespaces on a bridge, with links that can be cut and delayed (Linux, root, iproute2).

Only the network is separate: hosts share files and process ids.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Self

from grpo_engine.process.parent_death import dies_with_this_process
from tests.support.ray_hosts.namespace import Namespace, run_ip
from tests.support.ray_hosts.slow_link import SlowLink

BRIDGE = "bridge"
RANGE = IPv4Network("10.64.0.0/10")
"""Each network takes 256 addresses of it."""
Process = subprocess.Popen[bytes]


class Host:
    """A namespace with one interface, `eth0`, whose other end is a port of the bridge."""

    def __init__(self, namespace: Namespace, switch: Namespace, port: str, address: IPv4Address) -> None:
        self.namespace = namespace
        self.address = str(address)
        self._switch = switch
        self._port = port
        self._started: list[Process] = []
        self._slow_link: SlowLink | None = None
        switch.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace.path)
        switch.ip("link", "set", port, "master", BRIDGE, "up")
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
        """Put its port back on the bridge."""
        bridge = self._slow_link.bridge if self._slow_link else BRIDGE
        self._switch.ip("link", "set", self._port, "master", bridge)

    def delay(self, milliseconds: float, loss_percent: float = 0.0) -> None:
        """Delay each packet from and to the host, and lose some of them, until `undelay`."""
        self.undelay()
        self._slow_link = SlowLink(self._switch, self._port, BRIDGE, milliseconds, loss_percent)
        self.link_up()

    def undelay(self) -> None:
        if self._slow_link:
            self._slow_link.close()
            self._slow_link = None
            self.link_up()


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
        switch.ip("link", "add", BRIDGE, "type", "bridge")
        switch.ip("link", "set", BRIDGE, "up")
        self.range = self._connect_this_process(switch)
        for number in range(1, self._num_hosts + 1):
            self.hosts.append(Host(self._new_namespace(), switch, f"port{number}", self.range[number]))

    def _connect_this_process(self, switch: Namespace) -> IPv4Network:
        """Give the namespace of this process the last address of an unused range. Returns the range."""
        name = f"grpo{os.getpid()}-{switch.file}"
        run_ip("link", "add", name, "type", "veth", "peer", "name", "outside", "netns", switch.path)
        self.interface = name
        switch.ip("link", "set", "outside", "master", BRIDGE, "up")
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
            host.undelay()
        if self.interface:
            run_ip("link", "delete", self.interface)
        for namespace in self._namespaces:
            namespace.close()
