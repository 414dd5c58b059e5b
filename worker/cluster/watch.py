"""Writes the capabilities of the Ray cluster to a file: `python -m worker.cluster.watch`.

The process is a helper of the worker, which reads the file and does not import Ray. A cluster's capabilities
are those that all of its hosts with GPUs have.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.jobs.store.machines import this_machine
from service.platform import logs
from service.settings import Settings
from worker.cluster.capacity import Capacity, write_capacity
from worker.cluster.plan import HOSTS_OWN

WRITE_SECONDS = 2.0


def describe_host() -> dict[str, Any]:
    """Memory and capabilities of a host; runs on every host."""
    machine = this_machine(Settings(**HOSTS_OWN))
    return {"memory": machine.gpu_memory_gb, "capabilities": machine.capabilities}


class Watch:
    """The cluster's hosts. Each new host runs `describe_host` once, and counts once that has returned."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, Any]] = {}
        self._running: dict[str, Any] = {}

    def look(self) -> Capacity | None:
        """The cluster's current capacity; None: no host is described yet."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._describe(alive.keys() - self._hosts.keys() - self._running.keys())
        self._collect()
        known = {node: has for node, has in alive.items() if node in self._hosts}
        used = {node: has for node, has in known.items() if has.get("GPU")} or known
        if not used:
            return None
        described = [self._hosts[node] for node in used]
        return Capacity(
            hosts=len(used),
            gpus=int(sum(has.get("GPU", 0) for has in used.values())),
            gpu_memory_gb=min(each["memory"] for each in described),
            capabilities=tuple(sorted(frozenset.intersection(*(each["capabilities"] for each in described)))),
            at=time.time(),
        )

    def _describe(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(describe_host).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
            self._running[node] = task.remote()

    def _collect(self) -> None:
        """Collect the finished descriptions; a failed one is restarted."""
        if not self._running:
            return
        tasks = list(self._running.values())
        done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=WRITE_SECONDS)
        for node in [node for node, task in self._running.items() if task in done]:
            with suppress(RayError):
                self._hosts[node] = ray.get(self._running[node])
            del self._running[node]


def main() -> None:
    """Write the file until SIGTERM; ends with an error if the cluster is lost."""
    settings = Settings()
    logs.own_process(settings.log_level)
    rays = logging.getLogger("ray")
    rays.handlers.clear()
    rays.propagate = True
    address = os.environ.get("RAY_ADDRESS", "auto")
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(0))  # replaces the handler that ray.init has set
    watch = Watch()
    while True:
        if (capacity := watch.look()) is not None:
            write_capacity(settings, capacity)
        time.sleep(WRITE_SECONDS)


if __name__ == "__main__":
    main()
