"""What the Ray cluster has, as `watch.py` writes it to a file. Without a fresh one nothing is claimed."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from service.jobs.store.machines import CLUSTER, HOSTS, Capabilities, Machine
from service.settings import Settings
from worker.launchers.gpu_reservation import HostGpus

FRESH_SECONDS = 30.0


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
    """The last state of the cluster; None: the file is missing or older than `FRESH_SECONDS`."""
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
