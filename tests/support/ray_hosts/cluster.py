"""A Ray cluster on hosts of a network: the first host is the head, as an operator starts it (`ray start`).

Each host has a folder, a home (`GRPO_HOME`) and an environment of its own. Ray's authentication and usage
statistics are off, and its autoscaler and dashboard agents stay, because `ray start` cannot leave them out.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Self

from tests.support.ray_hosts.network import Host, Process
from tests.support.servers import wait_until

ROOT = Path(__file__).parents[3]
PORT = 6379
START_SECONDS = 120
HEAD_OPTIONS = ("--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor")
NOTHING: Mapping[str, str] = MappingProxyType({})
FAST_FAILURES = MappingProxyType(
    {
        # the head checks its nodes
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
        # nodes, actors and drivers check their connections
        "RAY_grpc_client_keepalive_time_ms": "2000",
        "RAY_grpc_client_keepalive_timeout_ms": "5000",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    }
)
"""Declares an unreachable host dead after about 9 s, and ends its processes about 5 s later."""


class RayHost:
    """The Ray node of one host."""

    def __init__(self, host: Host, folder: Path, environment: Mapping[str, str], num_gpus: int) -> None:
        self.host = host
        self.num_gpus = num_gpus
        self.num_cpus = max(2 * num_gpus, 2)
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.environment = host_environment(folder) | environment
        self._temp = folder / "ray"
        self._log = folder / "log"
        self._process: Process | None = None
        self._head = ""

    @property
    def address(self) -> str:
        return self.host.address

    def launch(self, head: str = "") -> Self:
        """Begin to start the node; without a head's address it is the head."""
        self._head = head
        role = [f"--address={head}"] if head else HEAD_OPTIONS
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = self.host.popen(
                [*RAY, "start", "--block", "--disable-usage-stats", *role, *self._options()],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        return self

    def _options(self) -> list[str]:
        return [
            f"--node-ip-address={self.address}",
            f"--num-cpus={self.num_cpus}",
            f"--num-gpus={self.num_gpus}",
            f"--temp-dir={self._temp}",
            "--object-store-memory=80000000",
            "--include-log-monitor=false",
        ]

    def wait_until_started(self) -> None:
        """Wait until the head has registered the node.

        Ray gives up after 30 s. Its agents' imports may take longer on a busy machine, so start it again.
        """
        deadline = time.monotonic() + START_SECONDS
        while self._has_ended_before_start():
            if "timed out during startup" not in self.log() or time.monotonic() > deadline:
                raise RuntimeError(f"the Ray node of {self.address} does not start: {self.log()[-3000:]}")
            self.kill()
            self.launch(self._head)

    def _has_ended_before_start(self) -> bool:
        """Wait until it has started or ended, and return whether it has ended."""
        assert self._process is not None, "not launched"
        ended = self._process.poll
        wait_until(lambda: self._says_started() or ended() is not None, START_SECONDS, self.address)
        return ended() is not None

    def _says_started(self) -> bool:
        return "Ray runtime started" in self.log()

    def log(self) -> str:
        """What `ray start` has printed."""
        return self._log.read_text(errors="replace")

    def pid_of(self, program: str) -> int:
        """The only process of the host with this program's name, such as `raylet` or `gcs_server`."""
        (pid,) = [pid for pid in self.host.pids() if program_of(pid) == program]
        return pid

    def kill_raylet(self) -> None:
        """Kill Ray's process that supervises the host's actors; other processes remain."""
        os.kill(self.pid_of("raylet"), signal.SIGKILL)

    def kill(self) -> None:
        """Kill every process of the host, as a power failure does."""
        self.host.kill()
        self._process = None

    def restart(self) -> None:
        """Kill what is left of it, and have it join the cluster as a new node."""
        self.kill()
        self.launch(self._head).wait_until_started()


def host_environment(folder: Path) -> dict[str, str]:
    """Variables of a host's processes. Nothing of Ray's is read from or written to the user's own home."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "GRPO_HOME": str(folder / "home"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # no idle workers: each one costs a second of imports
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "OMP_NUM_THREADS": "1",
        **FAST_FAILURES,
    }


RAY = (sys.executable, "-m", "ray.scripts.scripts")


def program_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


@contextmanager
def ray_hosts(
    hosts: Sequence[Host], num_gpus: Sequence[int], environment: Mapping[str, str] = NOTHING
) -> Iterator[list[RayHost]]:
    """Ray on these hosts with these numbers of GPUs; the first is the head. All are killed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it holds the paths of Unix sockets
    try:
        nodes = [
            RayHost(host, folder / str(number), environment, gpus)
            for number, (host, gpus) in enumerate(zip(hosts, num_gpus, strict=True))
        ]
        start(nodes)
        yield nodes
    finally:
        for host in hosts:
            host.kill()
        shutil.rmtree(folder)


def start(nodes: Sequence[RayHost]) -> None:
    """Start the first node as the head, then the others at the same time, and wait until all have joined."""
    nodes[0].launch().wait_until_started()
    for node in nodes[1:]:
        node.launch(address_of(nodes[0]))
    for node in nodes[1:]:
        node.wait_until_started()


def address_of(head: RayHost) -> str:
    """`RAY_ADDRESS` of the cluster."""
    return f"{head.address}:{PORT}"
