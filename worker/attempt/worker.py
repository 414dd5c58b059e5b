"""The resources that all attempts of a worker's process share, and whether it may claim a job now."""

import os
import socket
import threading
from dataclasses import dataclass, field
from typing import Self

import structlog

from service.jobs.store.machines import UNSAFE, Capabilities, of_this_machine, offered_to
from service.jobs.store.wakeups import Wakeups
from service.platform.catalog import Catalog, CatalogError
from service.platform.db import Database, connect
from service.platform.storage import Storage, is_usable, open_usable_storage
from service.settings import Settings
from worker.cluster.capacity import cluster_gpus, cluster_machine, read_capacity
from worker.launchers.gpu_check import GpuCheck
from worker.launchers.gpu_reservation import HostGpus
from worker.supervision import Flag

logger = structlog.get_logger()


@dataclass
class Obstacle:
    """Why a worker claims no job. Logged when it begins, changes and ends, not at each poll."""

    reason: str | None = None

    def note(self, reason: str | None) -> None:
        if reason == self.reason:
            return
        self.reason = reason
        if reason is None:
            logger.info("claiming again")
        else:
            logger.warning("no claim", reason=reason)


@dataclass(frozen=True)
class Worker:
    """Resources that all jobs of this process share."""

    name: str
    settings: Settings
    database: Database
    storage: Storage
    catalog: Catalog
    wakeups: Wakeups
    gpus: HostGpus
    gpu_check: GpuCheck
    draining: Flag = field(default_factory=threading.Event)
    """Set by SIGTERM. The worker then claims no more jobs and releases the running one after a checkpoint."""
    capabilities: Capabilities = field(default_factory=of_this_machine)
    """Capabilities of this machine; jobs that need others are left to other workers."""
    blocked: threading.Event = field(default_factory=threading.Event)
    """Set if the storage denies access, or if it or the models are not mounted, so that this worker does not
    fail job after job."""
    obstacle: Obstacle = field(default_factory=Obstacle)

    @classmethod
    def open(cls, settings: Settings, name: str, draining: Flag | None = None) -> Self:
        """Connect to the deployment of the settings. Raises StorageDenied."""
        settings.home.mkdir(parents=True, exist_ok=True)
        database = connect(settings)
        return cls(
            name,
            settings,
            database,
            open_usable_storage(settings.storage_location),
            Catalog(settings),
            Wakeups(settings),
            cluster_gpus(settings) if settings.launcher == "ray" else HostGpus.of(settings),
            GpuCheck(settings, database),
            draining or threading.Event(),
            of_this_machine(unsafe_allowed=settings.allows_unsafe, engine_python=settings.engine_python),
        )

    def close(self) -> None:
        self.wakeups.close()
        self.database.engine.dispose()

    def may_claim(self) -> bool:
        """Whether storage, model catalogue and, on a cluster, the cluster's state can be used."""
        reason = self._reason_not_to_claim()
        if reason is not None:
            self.obstacle.note(reason)
        return reason is None

    def _reason_not_to_claim(self) -> str | None:
        if self.settings.launcher == "ray" and read_capacity(self.settings) is None:
            return "the state of the Ray cluster is unknown"
        try:
            lacks_models = self.lacks_models()
        except CatalogError as error:
            return str(error)
        if self.blocked.is_set() and is_usable(self.storage) and not lacks_models:
            self.blocked.clear()
        return "storage or models cannot be used, or are not mounted" if self.blocked.is_set() else None

    def lacks_models(self) -> bool:
        """Whether no base model is on this machine. Raises CatalogError."""
        return not self.catalog.has_models() and self.settings.launcher == "local"

    def offered_capabilities(self) -> Capabilities:
        """Capabilities that jobs may use now. Raises SQLAlchemyError."""
        found = self.engine_capabilities()
        if UNSAFE not in found:
            return found
        with self.database.reading() as session:
            return offered_to(session, found)

    def engine_capabilities(self) -> Capabilities:
        """Capabilities of the machines on which this worker's engines run."""
        if self.settings.launcher == "local":
            return self.capabilities
        cluster = cluster_machine(self.settings)
        return cluster.capabilities if cluster else frozenset()

    def touch(self) -> None:
        """Touch the file that `worker.healthcheck` reads."""
        self.settings.alive_file.touch()


def worker_name() -> str:
    """Holder of a lease: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"[:128]
