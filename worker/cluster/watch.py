"""Looks at the Ray cluster and writes what it has to a file: `python -m worker.cluster.watch`.

The process is a helper of the worker, which reads the file and does not import Ray. A cluster's capabilities
are those that all of its hosts with GPUs have.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from grpo_engine.process.gpus import count_visible_gpus, smallest_memory_gb
from service.jobs.store.machines import of_this_machine
from service.settings import Settings
from worker.cluster.capacity import Capacity, file_of

WRITE_SECONDS = 2.0


def describe_host() -> dict[str, Any]:
    """What a host offers; runs on each one."""
    settings = Settings(mode="embedded", database_url=None, broker_url=None)
    memory = smallest_memory_gb(os.environ) if count_visible_gpus(os.environ) else 0
    offered = of_this_machine(unsafe_allowed=settings.allows_unsafe)
    return {"memory": settings.gpu_memory_gb or memory, "capabilities": offered}


class Watch:
    """Looks at the cluster; each new host is asked once what it offers, and counts when it has answered."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, Any] = {}

    def look(self) -> Capacity | None:
        """The cluster now; None: no host has answered yet."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._ask(alive.keys() - self._hosts.keys() - self._asked.keys())
        self._take_answers()
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

    def _ask(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(describe_host).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
            self._asked[node] = task.remote()

    def _take_answers(self) -> None:
        """Take the answers that have arrived; a host that failed is asked again."""
        if not self._asked:
            return
        answers, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=WRITE_SECONDS)
        for node in [node for node, asked in self._asked.items() if asked in answers]:
            with suppress(RayError):
                self._hosts[node] = ray.get(self._asked[node])
            del self._asked[node]


def main() -> None:
    """Write until SIGTERM; ends with an error when the cluster is lost."""
    file = file_of(Settings())
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(0))  # ray.init has set its own
    watch = Watch()
    while True:
        if (capacity := watch.look()) is not None:
            written = file.with_suffix(".partial")
            written.write_text(json.dumps(asdict(capacity)))
            written.replace(file)
        time.sleep(WRITE_SECONDS)


if __name__ == "__main__":
    main()
