"""The lease of a claimed job: renewed in the background, which also detects cancel and pause requests.

It is lost if another fence holds the job, or if no renewal has succeeded for `self_fence_seconds` (monotonic
clock). In both cases the engine is killed at once, because it could not publish another checkpoint, and a
worker that is cut off from the database must not train while its successor does.
"""

import threading
from contextvars import copy_context
from time import monotonic
from typing import Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import JobState
from service.jobs.store import queue
from service.jobs.store.claiming import ClaimedJob
from service.platform.db import Database, reason_of
from service.settings import Settings
from worker.launchers.base import Run

logger = structlog.get_logger()


class Lost(Exception):
    """Another worker may hold the job now, so this one must stop and write nothing more."""


class Lease:
    """A context manager that holds one claimed job. `claimed_at`: monotonic time before the claim."""

    def __init__(self, database: Database, settings: Settings, job: ClaimedJob, claimed_at: float) -> None:
        self._database = database
        self._settings = settings
        self._job_id, self._fence = job.id, job.fence
        self._renewed_at = claimed_at
        self._lost = threading.Event()
        self._done = threading.Event()
        self._changed = threading.Event()
        """Set after a renewal and at the end."""
        self._engine: Run | None = None
        self.state = JobState.RUNNING
        """State of the job at the last renewal."""
        # both start with the lease, because a machine that cannot start a thread later must not lose the job;
        # the copied contexts add the attempt's log fields to the threads' lines
        self._threads = [
            threading.Thread(target=copy_context().run, args=(target,), name=name, daemon=True)
            for name, target in {
                "lease": self._renew_until_done,
                "self-fence": self._fence_until_done,
            }.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self._changed.set()
        for thread in self._threads:
            thread.join(timeout=self._settings.heartbeat_seconds)

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    def check(self) -> None:
        """Raise Lost if the lease is lost."""
        if self.lost:
            raise Lost(self._job_id)

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the lease is lost. Raises Lost."""
        self._lost.wait(seconds)
        self.check()

    def guard(self, engine: Run) -> None:
        """Kill this engine when the lease is lost. Raises Lost if it is lost already."""
        self._engine = engine
        self.check()

    def lose(self) -> None:
        """Mark the lease as lost and kill the engine."""
        self._lost.set()
        if self._engine is not None:
            self._engine.kill()

    def _renew_until_done(self) -> None:
        while not self._done.wait(self._settings.heartbeat_seconds) and not self.lost:
            self._renew()

    def _renew(self) -> None:
        sent_at = monotonic()
        fault_point("lease.renewing")
        try:
            with self._database.connection() as session:
                state = queue.renew(
                    session, self._job_id, self._fence, lease_seconds=self._settings.lease_seconds
                )
        except SQLAlchemyError as error:
            logger.warning("lease not renewed", error=reason_of(error))
            return
        if state is not None:
            fault_point("lease.renewed")
            self.state = state
            self._renewed_at = sent_at
            self._changed.set()
        elif not self._done.is_set():
            self.lose()

    def _fence_until_done(self) -> None:
        """Lose the lease if it was not renewed for too long, from the time before a statement was sent."""
        while not self._done.is_set():
            seconds_left = self._renewed_at + self._settings.self_fence_seconds - monotonic()
            if seconds_left <= 0:
                logger.error("lease not renewed for too long; killing the engine")
                self.lose()
                return
            self._changed.wait(seconds_left)
            self._changed.clear()
