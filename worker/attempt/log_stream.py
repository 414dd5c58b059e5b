"""Sends the output of an attempt's processes to the database while they run, masked and in batches.

The files are in the worker's run directory: `engine.log` or, on a cluster, the driver's log and the ranks'
`rank-<n>.log`. Nothing is read while the database is down; the files keep the newest output.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.jobs.progress import logs
from service.jobs.progress.logs import PrintedLines
from service.jobs.store.transitions import lock_held
from service.platform.db import OUTAGES, reason_of
from worker.attempt.attempt import Attempt
from worker.attempt.lease import Lost
from worker.cluster.place import ClusterPlace
from worker.launchers.log_reader import LogReader
from worker.masking import mask_secrets

STORE_SECONDS = 2.0
RETRY_SECONDS = 0.5
BATCH_BYTES = 2**18
"""Bytes to read at a time. They bound the time for masking, and how fast an engine can fill the database."""
_OF_RANK = re.compile(r"rank-(\d+)\.log")
logger = structlog.get_logger()


class LogStream:
    """The log of one attempt. Must be used in one thread."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._readers: dict[Path, LogReader] = {}
        self._unstored: list[PrintedLines] = []
        self._stored_to: int | None = None
        """Number of the last line that is known to be stored; None: not known yet."""
        self._due_at = monotonic() + STORE_SECONDS

    def store_if_due(self) -> None:
        """Store new lines every few seconds; after an outage, in a later call. Raises Lost."""
        if monotonic() >= self._due_at:
            self._read()
            self._store()
            self._due_at = monotonic() + STORE_SECONDS

    def close(self) -> None:
        """Store the rest after the end of the processes, retried during an outage. Raises Lost.

        If the lease is still renewed but the log not stored after `self_fence_seconds`, the rest is dropped.
        """
        give_up_at = monotonic() + self._attempt.worker.settings.self_fence_seconds
        try:
            while self._read() or self._read_ends():
                self._attempt.lease.check()
                self._attempt.worker.touch()
                if not self._store():
                    self._attempt.lease.wait(RETRY_SECONDS)
                if monotonic() > give_up_at:
                    logger.error("rest of the log dropped")
                    break
        finally:
            for reader in self._readers.values():
                reader.close()

    def _store(self) -> bool:
        """Write the unstored lines; False: the database is down. Raises Lost."""
        if not self._unstored:
            return True
        try:
            with self._attempt.worker.database.transaction() as session:
                stored_to = self._write(session)
        except OUTAGES as error:
            logger.warning("log not stored yet", error=reason_of(error))
            return False
        except SQLAlchemyError:
            logger.exception("log lines dropped")
        else:
            if stored_to is None:
                self._attempt.lease.lose()
                raise Lost(self._attempt.job.id)
            self._stored_to = stored_to
        self._unstored = []
        return True

    def _write(self, session: Session) -> int | None:
        """Write the lines; returns the number of the last one. None: the claim is no longer held.

        If the connection was lost after an earlier COMMIT of the same lines, they are not written again.
        """
        job = self._attempt.job
        if lock_held(session, job.id, job.fence) is None:
            return None
        if self._stored_to is None:
            self._stored_to = logs.last_sequence(session, job.id)
        return logs.append(session, job.id, job.attempt, self._unstored, after=self._stored_to)

    def _read(self) -> bool:
        """Read a batch, unless one is waiting. Returns whether there is anything to store."""
        if not self._unstored:
            for path in sorted(self._attempt.folder.glob("*.log")):
                reader = self._readers.setdefault(path, LogReader(path))
                self._add(path, reader.read(BATCH_BYTES))
        return bool(self._unstored)

    def _read_ends(self) -> bool:
        """Close the files, and read their last lines if they have no end."""
        for path, reader in self._readers.items():
            self._add(path, reader.close())
        return bool(self._unstored)

    def _add(self, path: Path, lines: Sequence[str]) -> None:
        """Add a process's lines without secrets, including secrets that span several lines."""
        if lines:
            text = mask_secrets(logs.without_escapes("\n".join(lines)))
            printed = [logs.readable(line) for line in text.split("\n")]
            self._unstored.append(PrintedLines(self._rank_of(path), printed))

    def _rank_of(self, path: Path) -> int | None:
        if named := _OF_RANK.fullmatch(path.name):
            return int(named[1])
        return None if isinstance(self._attempt.place, ClusterPlace) else 0
