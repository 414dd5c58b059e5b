"""Keeps a process for each sink that is due, beside the sweeper and never in its way.

Boundary: processes and their end; what is due and what a failure means is `service/sinks/outbox.py`'s.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.platform.db import Database
from service.settings import Settings
from service.sinks import outbox
from worker.attempt.attempt import Flag
from worker.launchers import launch

logger = structlog.get_logger()

MAX_PROCESSES = 6
"""Of this machine: two jobs with all three sinks. What is due beyond that waits its turn."""
STOP_SECONDS = 5.0
"""From SIGTERM to SIGKILL: time to write what is at hand."""
HUNG = "it hung, and was ended; it may not reach its server."


@dataclass
class Keeper:
    """The processes of one worker's sinks."""

    database: Database
    settings: Settings
    _running: dict[outbox.Claim, subprocess.Popen[bytes]] = field(default_factory=dict)

    def keep_until(self, stopping: Flag) -> None:
        """A round every `sweep_seconds`; at the end every process may still write what it has."""
        while not stopping.is_set():
            try:
                self.look_once()
            except SQLAlchemyError as error:
                logger.warning("no look at sinks", error=type(error).__name__)
            except OSError as error:  # no process can be started; a claim that was taken ends by itself
                logger.warning("no sink started", error=str(error))
            stopping.wait(self.settings.sweep_seconds)
        self.end_all()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def look_once(self) -> None:
        """Bury the dead, end the hung, start what is due. Raises SQLAlchemyError, OSError."""
        for claim, process in list(self._running.items()):
            self._look_at(claim, process)
        while len(self._running) < MAX_PROCESSES:
            with self.database.transaction() as session:
                due = outbox.claim_due(session, self.settings.pool)
            if due is None:
                return
            self._running[due] = self._started(due)

    def _look_at(self, claim: outbox.Claim, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is None:
            with self.database.reading() as session:
                if outbox.is_held(session, claim):
                    return
                is_hung = outbox.has_lapsed(session, claim)
            _end(process, 0 if is_hung else STOP_SECONDS)  # who has let go of its claim is on its way out
            reason = HUNG if is_hung else None
        else:
            reason = None if code in (0, os.EX_TEMPFAIL) else _ended(code)
        del self._running[claim]
        if reason is not None:
            self._tell(claim, reason)

    def _tell(self, claim: outbox.Claim, reason: str) -> None:
        logger.warning("sink's process ended", job=claim.job_id, sink=claim.type, reason=reason)
        with self.database.transaction() as session:
            outbox.fail(session, claim, reason)

    def _started(self, claim: outbox.Claim) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid())]
        named = [claim.job_id, claim.type, str(claim.number)]
        command = [*launcher, sys.executable, "-m", "worker.sinks", *named]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def end_all(self) -> None:
        """Each may still write what it has at hand."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            _end(process, STOP_SECONDS)
        self._running.clear()


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """It has so long to end by itself."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ended(code: int) -> str:
    return f"its process was ended by {signal.Signals(-code).name}." if code < 0 else "its process broke off."


@contextmanager
def keeping(stopping: Flag, database: Database, settings: Settings) -> Iterator[None]:
    """A thread that keeps sinks until `stopping`."""
    keeper = Keeper(database, settings)
    thread = threading.Thread(target=keeper.keep_until, args=(stopping,), name="sinks", daemon=True)
    thread.start()
    yield
    thread.join(timeout=2 * STOP_SECONDS)
