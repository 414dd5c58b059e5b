"""One claim of one job, and how its writes reach the database: patiently, and only while it is ours."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError
from sqlalchemy.orm import Session

from grpo_engine.config.job import Hyperparameters, Method, TrainingFreeHyperparameters, hyperparameters_of
from grpo_engine.contract.events import CheckpointSaved
from service.jobs.model.methods import parsed_method
from service.jobs.model.states import JobState
from service.jobs.store.claimed import ClaimedJob
from service.jobs.store.machines import UNSAFE, Capabilities, of_this_machine, offered_to
from service.jobs.store.wakeups import Wakeups
from service.platform.catalog import Catalog
from service.platform.db import Database, Executor, connect
from service.platform.direct import Direct
from service.platform.storage import (
    ObjectMissing,
    Storage,
    StorageDenied,
    StorageError,
    StorageFull,
    is_usable,
    open_usable_storage,
)
from service.settings import Settings
from worker.attempt.lease import Lease, Lost
from worker.supervision import Flag

T = TypeVar("T")
E = TypeVar("E", bound=Executor)
logger = structlog.get_logger()

OUTAGES = (OperationalError, InterfaceError, TimeoutError)
"""What SQLAlchemy raises while the database is away, restarting or out of connections."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0
STORAGE_TRIES = 6


@dataclass(frozen=True)
class Worker:
    """What every job of this process shares."""

    name: str
    settings: Settings
    database: Database
    storage: Storage
    catalog: Catalog
    wakeups: Wakeups
    draining: Flag = field(default_factory=threading.Event)
    """Set by SIGTERM: claim nothing more, let go of what runs after a checkpoint."""
    capabilities: Capabilities = field(default_factory=of_this_machine)
    """What this machine offers; jobs that need more are left for others."""
    denied: threading.Event = field(default_factory=threading.Event)
    """Set when the storage denied access: else this worker would fail one job after the other."""

    @classmethod
    def open(cls, settings: Settings, name: str, draining: Flag | None = None) -> Worker:
        """The deployment's parts, as the settings name them. Raises StorageDenied."""
        settings.home.mkdir(parents=True, exist_ok=True)
        return cls(
            name,
            settings,
            connect(settings),
            open_usable_storage(settings.storage_location),
            Catalog(settings),
            Wakeups(settings),
            draining or threading.Event(),
            of_this_machine(unsafe_allowed=settings.allows_unsafe),
        )

    def close(self) -> None:
        self.wakeups.close()
        self.database.engine.dispose()

    def may_claim(self) -> bool:
        """Whether jobs can be run here; after a denial the storage is asked again."""
        if self.denied.is_set() and is_usable(self.storage):
            self.denied.clear()
        return not self.denied.is_set()

    def offered(self) -> Capabilities:
        """What jobs may count on now. Raises SQLAlchemyError while the database is away."""
        if UNSAFE not in self.capabilities:
            return self.capabilities
        with self.database.reading() as session:
            return offered_to(session, self.capabilities)

    def touch(self) -> None:
        """Liveness: a file that the main loop touches."""
        self.settings.alive_file.touch()


def worker_name() -> str:
    """Who holds a lease, for people: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"[:128]


class Refused(Exception):
    """The job cannot succeed; trying again would fail again."""

    def __init__(self, code: str, message: str, hint: str = "", evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.failure = {"code": code, "message": message, "hint": hint, "evidence": list(evidence)}


@dataclass(frozen=True)
class Attempt:
    """A claimed job with its lease."""

    worker: Worker
    job: ClaimedJob
    lease: Lease
    unpublished: list[CheckpointSaved] = field(default_factory=list)
    """Checkpoints that the storage did not take; the next one takes them along."""

    @property
    def folder(self) -> Path:
        """This claim's own: no other engine ever writes there."""
        return self.worker.settings.runs_dir.resolve() / self.job.id / str(self.job.fence)

    @property
    def method(self) -> Method:
        """What the job asked for. Raises Refused where this version of the engine does not know it."""
        try:
            return parsed_method(self.job.method)
        except ValidationError as error:
            raise Refused("config_invalid", f"this worker cannot read the job's method: {error}") from error

    @property
    def hyperparameters(self) -> Hyperparameters | TrainingFreeHyperparameters:
        return hyperparameters_of(self.method)

    def write(self, change: Callable[[Session], T | None]) -> T:
        """One fenced transaction, repeated through an outage. Raises Lost when the fence is stale."""
        return self._fenced(self.read(change))

    def write_directly(self, change: Callable[[Connection | Direct], T | None]) -> T:
        """The same for a change that needs neither ORM nor transaction: it is whole after each statement."""
        return self._fenced(self._through_outages(self.worker.database.direct, change))

    def read(self, query: Callable[[Session], T]) -> T:
        """One transaction, repeated through an outage of the database for as long as the lease holds."""
        return self._through_outages(self.worker.database.transaction, query)

    def _fenced(self, result: T | None) -> T:
        if result is None or result is False:
            self.lease.lose()
            raise Lost(self.job.id)
        return result

    def _through_outages(self, opened: Callable[[], AbstractContextManager[E]], query: Callable[[E], T]) -> T:
        for pause in _pauses():
            self.lease.check()
            self.worker.touch()
            try:
                with opened() as executor:
                    return query(executor)
            except OUTAGES as error:
                logger.warning("database away", error=type(error).__name__)
            self.lease.wait(pause)
        raise AssertionError("unreachable: the pauses never end")

    def store(self, action: Callable[[], T], *, is_patient: bool = False) -> T:
        """One storage operation, repeated a few times; patiently: until somebody asks for the job's end.

        Raises StorageError, or Refused when it is full. What is not there (ObjectMissing) will not come by
        waiting, and who is refused (StorageDenied) will not be let in.
        """
        for num_tries, pause in enumerate(_pauses(), 1):
            try:
                return action()
            except ObjectMissing:
                raise
            except StorageDenied as error:
                logger.error("storage denies access", job=self.job.id, error=str(error))
                self.worker.denied.set()
                raise
            except StorageFull as error:
                logger.warning("storage full", error=str(error))
                raise Refused("disk_full", "The artifact storage is full.", "Free space in it.") from error
            except StorageError as error:
                logger.warning("storage failed", error=str(error))
                if num_tries >= STORAGE_TRIES and not (is_patient and self._is_undisturbed()):
                    raise
            self.worker.touch()
            self.lease.wait(pause)
        raise AssertionError("unreachable: the pauses never end")

    def _is_undisturbed(self) -> bool:
        return self.lease.state is JobState.RUNNING and not self.worker.draining.is_set()


def _pauses() -> Iterator[float]:
    return (min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**n) for n in itertools.count())
