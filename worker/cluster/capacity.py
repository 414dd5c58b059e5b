"""The file in which `watch.py` describes the Ray cluster. If it is not fresh, no job is claimed."""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from uuid import uuid4

from service.jobs.store.machines import CLUSTER, HOSTS, Capabilities, Machine
from service.settings import Settings
from worker.launchers.gpu_reservation import HostGpus

FILE = "cluster.json"
FRESH_SECONDS = 30.0


@dataclass(frozen=True)
class Capacity:
    """The connected hosts of a cluster together."""

    hosts: int
    gpus: int
    gpu_memory_gb: int
    """Memory of the smallest GPU; 0: unknown, or no GPU."""
    capabilities: tuple[str, ...]
    at: float
    """Time of the description, in Unix seconds."""


def read_capacity(settings: Settings) -> Capacity | None:
    """The last state of the cluster; None: the file is missing or older than `FRESH_SECONDS`."""
    with suppress(OSError, ValueError, TypeError):
        found = json.loads((settings.home / FILE).read_text())
        capacity = Capacity(**found | {"capabilities": tuple(found["capabilities"])})
        return capacity if time.time() - capacity.at < FRESH_SECONDS else None
    return None


def write_capacity(settings: Settings, capacity: Capacity) -> None:
    """Replace the file, as other workers with the same home may do at the same time."""
    temporary = settings.home / f"{FILE}.{uuid4().hex}"
    try:
        temporary.write_text(json.dumps(asdict(capacity)))
        os.replace(temporary, settings.home / FILE)
    finally:
        temporary.unlink(missing_ok=True)


def cluster_gpus(settings: Settings) -> HostGpus:
    """A lock for each GPU that the cluster has or may grow to. Ray decides which ones a job gets.

    The locks only count GPUs that this host's workers use; other users of the cluster may have taken more.
    """

    def names() -> tuple[str, ...]:
        capacity = read_capacity(settings)
        return tuple(f"cluster-{n}" for n in range(max(settings.gpus, capacity.gpus if capacity else 0)))

    return HostGpus(settings.home / "gpus", names, are_real=False)


def cluster_machine(settings: Settings) -> Machine | None:
    """What the cluster offers to a job; None if no fresh state is known."""
    capacity = read_capacity(settings)
    if capacity is None:
        return None
    memory = capacity.gpu_memory_gb if settings.gpu_memory_gb is None else settings.gpu_memory_gb
    offered = frozenset({*capacity.capabilities, CLUSTER})
    return Machine(offered, max(settings.gpus, capacity.gpus), memory)


def cluster_hosts(settings: Settings) -> Capabilities:
    """The capability that states the cluster's number of hosts; empty if there is no cluster."""
    capacity = read_capacity(settings) if settings.launcher == "ray" else None
    return frozenset({f"{HOSTS}{capacity.hosts}"} if capacity else ())
