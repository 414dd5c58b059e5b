"""What the Ray cluster has: `python -m worker.cluster.capacity` writes it to a file every few seconds.

The process is a helper of the worker, which reads the file and does not import Ray. Without a fresh file the
worker claims no job. A cluster's capabilities are those that all of its hosts have.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_engine.process.gpus import count_visible_gpus, smallest_memory_gb
from service.jobs.store.machines import CLUSTER, HOSTS, Capabilities, Machine, of_this_machine
from service.settings import Settings
from worker.launchers.gpu_reservation import HostGpus

WRITE_SECONDS = 2.0
FRESH_SECONDS = 30.0
DESCRIBE_SECONDS = 60.0


@dataclass(frozen=True)
class Capacity:
    """The living hosts of a cluster together."""

    hosts: int
    gpus: int
    gpu_memory_gb: int
    """Of the smallest GPU; 0: unknown, or none."""
    capabilities: tuple[str, ...]
    at: float
    """Unix seconds."""


def file_of(settings: Settings) -> Path:
    return settings.home / "cluster.json"


def read_capacity(settings: Settings) -> Capacity | None:
    """The last state of the cluster; None: nobody has seen it for `FRESH_SECONDS`."""
    with suppress(OSError, ValueError, TypeError):
        found = json.loads(file_of(settings).read_text())
        capacity = Capacity(**found | {"capabilities": tuple(found["capabilities"])})
        return capacity if time.time() - capacity.at < FRESH_SECONDS else None
    return None


def cluster_gpus(settings: Settings) -> HostGpus:
    """The cluster's GPUs as far as this host's workers have given them out, those that it may get included.

    Ray decides which ones a job gets, and whether they are free.
    """

    def names() -> tuple[str, ...]:
        capacity = read_capacity(settings)
        return tuple(f"cluster-{n}" for n in range(max(settings.gpus, capacity.gpus if capacity else 0)))

    return HostGpus(settings.home / "gpus", names, are_real=False)


def cluster_machine(settings: Settings) -> Machine | None:
    """What the cluster offers to a job; None: it is not seen."""
    capacity = read_capacity(settings)
    if capacity is None:
        return None
    memory = capacity.gpu_memory_gb if settings.gpu_memory_gb is None else settings.gpu_memory_gb
    offered = frozenset({*capacity.capabilities, CLUSTER})
    return Machine(offered, max(settings.gpus, capacity.gpus), memory)


def cluster_hosts(settings: Settings) -> Capabilities:
    """The capability that says how many hosts the cluster has; nothing without one."""
    capacity = read_capacity(settings) if settings.launcher == "ray" else None
    return frozenset({f"{HOSTS}{capacity.hosts}"} if capacity else ())


def describe_host() -> dict[str, Any]:
    """What a host offers; runs on each one."""
    settings = Settings(mode="embedded", database_url=None, broker_url=None)
    memory = smallest_memory_gb(os.environ) if count_visible_gpus(os.environ) else 0
    offered = of_this_machine(unsafe_allowed=settings.allows_unsafe)
    return {"memory": settings.gpu_memory_gb or memory, "capabilities": offered}


class Watch:
    """Looks at the cluster; each new host is asked once what it offers."""

    def __init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._affinity = ray, NodeAffinitySchedulingStrategy
        self._hosts: dict[str, dict[str, Any]] = {}

    def look(self) -> Capacity:
        """The cluster now."""
        alive = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        for node in alive.keys() - self._hosts.keys():
            self._hosts[node] = self._describe(node)
        with_gpus = {node for node, has in alive.items() if has.get("GPU")} or set(alive)
        described = [self._hosts[node] for node in with_gpus]
        return Capacity(
            hosts=len(with_gpus),
            gpus=int(sum(has.get("GPU", 0) for has in alive.values())),
            gpu_memory_gb=min((each["memory"] for each in described), default=0),
            capabilities=tuple(sorted(frozenset.intersection(*(each["capabilities"] for each in described)))),
            at=time.time(),
        )

    def _describe(self, node: str) -> dict[str, Any]:
        there = self._affinity(node, soft=False)
        task = self._ray.remote(describe_host).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
        found: dict[str, Any] = self._ray.get(task.remote(), timeout=DESCRIBE_SECONDS)
        return found


def main() -> None:
    """Write until SIGTERM; ends with an error when the cluster is lost."""
    settings = Settings()
    watch = Watch()
    watch._ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(0))
    file = file_of(settings)
    while True:
        written = file.with_suffix(".partial")
        written.write_text(json.dumps(asdict(watch.look())))
        written.replace(file)
        time.sleep(WRITE_SECONDS)


if __name__ == "__main__":
    main()
