"""One claim of one job. Its writes are retried during outages, but only as long as the claim is valid."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy.orm import Session

from grpo_engine.config.job import Hyperparameters, Method, TrainingFreeHyperparameters, hyperparameters_of
from grpo_engine.contract.events import CheckpointSaved
from service.jobs.model.methods import UnreadableMethod, parsed_method
from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.claiming import ClaimedJob
from service.jobs.store.transitions import lock_held
from service.platform.catalog import CatalogError
from service.platform.db import OUTAGES, reason_of
from service.platform.storage import ObjectMissing, StorageDenied, StorageError, StorageFull
from worker.attempt.lease import Lease, Lost
from worker.attempt.worker import Worker
from worker.launchers.base import Place
from worker.launchers.gpu_reservation import Reservation
from worker.launchers.run_files import LocalRunFiles, RunFiles

T = TypeVar("T")
logger = structlog.get_logger()

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0
STORAGE_TRIES = 6


class Refused(Exception):
    """The job cannot succeed; retrying would fail again."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.failure = {"code": code, "message": message, "hint": hint, "evidence": []}


@dataclass(frozen=True)
class Attempt:
    """A claimed job with its lease."""

    worker: Worker
    job: ClaimedJob
    lease: Lease
    gpus: Reservation = field(default_factory=Reservation)
    place: Place | None = None
    """Where the engine runs; None: on this machine."""
    unpublished: list[CheckpointSaved] = field(default_factory=list)
    """Checkpoints that could not be stored; they are published with the next one."""

    @property
    def folder(self) -> Path:
        """The claim's own directory on this machine, in which no other engine writes."""
        return self.worker.settings.runs_dir.resolve() / self.job.id / str(self.job.fence)

    @property
    def files(self) -> RunFiles:
        """The run directory of the engine."""
        return self.place.files if self.place else LocalRunFiles(self.folder, self.worker.storage)

    @property
    def num_ranks(self) -> int:
        """Number of processes that train the job together; an export is one process."""
        given = len(self.gpus.names) or self.job.required_gpus or self.worker.settings.runtime.ranks
        return 1 if self.job.export else given - self.num_samplers

    @property
    def num_samplers(self) -> int:
        """Number of processes that sample for the ranks, each on its own GPU."""
        return 0 if self.job.export else self.job.resources.get("sampler_gpus", 0)

    @property
    def method(self) -> Method:
        """The job's method. Raises Refused if this version of the engine cannot parse it."""
        try:
            return parsed_method(self.job.method)
        except UnreadableMethod as error:
            message = f"this worker cannot read the job's method: {error.reason}"
            raise Refused("config_invalid", message) from error

    @property
    def hyperparameters(self) -> Hyperparameters | TrainingFreeHyperparameters:
        return hyperparameters_of(self.method)

    def write(self, change: Callable[[Session], T | None]) -> T:
        """Run a fenced transaction, retried during an outage. Raises Lost if the fence is stale."""
        result = self.read(change)
        if result is None or result is False:
            self.lease.lose()
            raise Lost(self.job.id)
        return result

    def warn(self, message: str, data: dict[str, Any]) -> None:
        """Add a warning to the job's history. Raises Lost."""
        self.note(message, data, "warn")

    def note(self, message: str, data: dict[str, Any], level: str = "info") -> None:
        """Add a message to the job's history. Raises Lost."""
        job = self.job
        entry = history.HistoryEntry("message", message, level, data, job.fence)
        self.write(
            lambda session: lock_held(session, job.id, job.fence) and history.append(session, job.id, entry)
        )

    def read(self, query: Callable[[Session], T]) -> T:
        """Run a transaction, retried during an outage as long as the lease is valid. Raises Lost."""
        pauses = _pauses()
        while True:
            self.lease.check()
            self.worker.touch()
            try:
                with self.worker.database.transaction() as session:
                    return query(session)
            except OUTAGES as error:
                logger.warning("database unavailable", error=reason_of(error))
            self.lease.wait(next(pauses))

    def transfer(self, action: Callable[[], T], *, is_patient: bool = False) -> T:
        """Run an operation on the storage or the catalogue, retried a few times; `is_patient`: until the job
        or worker has to stop.

        Raises StorageError or CatalogError, or Refused if the storage is full. A missing object
        (ObjectMissing) and denied access (StorageDenied) are not retried.
        """
        for num_tries, pause in enumerate(_pauses(), 1):
            try:
                return action()
            except ObjectMissing:
                if self.worker.storage.is_unmounted():
                    self.worker.blocked.set()
                raise
            except StorageDenied as error:
                logger.error("storage denies access", job=self.job.id, error=str(error))
                self.worker.blocked.set()
                raise
            except StorageFull as error:
                logger.warning("storage full", error=str(error))
                raise Refused("disk_full", "The artifact storage is full.", "Free space in it.") from error
            except (StorageError, CatalogError) as error:
                logger.warning("transfer failed", error=str(error))
                must_stop = self.lease.state is not JobState.RUNNING or self.worker.draining.is_set()
                if num_tries >= STORAGE_TRIES and (must_stop or not is_patient):
                    raise
            self.worker.touch()
            self.lease.wait(pause)
        raise AssertionError("the pauses are endless")


def _pauses() -> Iterator[float]:
    return (min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**n) for n in itertools.count())
