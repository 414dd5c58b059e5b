"""Decides where an attempt runs: one process on this machine, or ranks on Ray."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from service.settings import Settings
from worker.attempt.attempt import Attempt, Refused
from worker.cluster.place import cluster_place
from worker.cluster.plan import HOSTS_OWN, Plan
from worker.launchers.base import Place
from worker.launchers.local_place import LocalPlace
from worker.launchers.warm_pool import WarmPool


@contextmanager
def reserved_place(attempt: Attempt, engines: WarmPool) -> Iterator[Place]:
    """Yield the attempt's place, which is reserved until the block ends. Raises Refused."""
    is_alone = attempt.num_ranks + attempt.num_samplers == 1
    if attempt.worker.settings.launcher == "local" and is_alone:
        yield LocalPlace(attempt.folder, attempt.worker.storage, engines, attempt.gpus.environment)
        return
    if find_spec("ray") is None:
        hint = "Install it on the worker's machine: pip install 'grpo-service[ray]'."
        raise Refused("ray_missing", "The job runs on Ray, which is not installed here.", hint)
    with cluster_place(plan_of(attempt)) as place:
        yield place


def plan_of(attempt: Attempt) -> Plan:
    """The attempt's ranks on the cluster of the settings, or on a private one with the reserved GPUs."""
    settings, gpus = attempt.worker.settings, attempt.gpus
    wanted = attempt.job.resources
    is_reduced = attempt.num_ranks < wanted.get("gpus", 0)
    is_private = settings.launcher == "local"
    return Plan(
        job_id=attempt.job.id,
        fence=attempt.job.fence,
        num_ranks=attempt.num_ranks,
        num_samplers=attempt.num_samplers,
        hosts=0 if is_private or is_reduced else wanted.get("hosts", 0),
        resource="rank" if is_private else "GPU" if gpus.names else "CPU",
        may_grow=settings.gpus > 0,
        folder=attempt.folder,
        first_sequence=attempt.job.engine_sequence + 1,
        settings=host_settings(settings, is_private=is_private),
        address=None if is_private else os.environ.get("RAY_ADDRESS", "auto"),
        gpus=gpus.names if gpus.are_real else (),
    )


def host_settings(settings: Settings, *, is_private: bool) -> dict[str, Any]:
    """Settings that the worker gives to the ranks' hosts; in a private cluster, also those of its host."""
    shared = {"storage_url": settings.storage_location, "engine_module": settings.engine_module}
    if is_private:
        names = ("home", "engine_python", "unsafe_graders")
        shared |= {name: getattr(settings, name) for name in names}
    return {**HOSTS_OWN, **shared}
