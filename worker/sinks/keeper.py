"""Runs one process per due sink, from a thread beside the sweeper.

Boundary: processes; `service/sinks/outbox.py` decides which sinks are due and what a failure means.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError

from grpo_engine.process.parent_death import bound_command
from service.ops.helper_heartbeats import SINKS, Heartbeat
from service.platform.db import Database, reason_of
from service.settings import Settings
from service.sinks import outbox
from worker.supervision import Flag, end_process, run_rounds

logger = structlog.get_logger()

MAX_PROCESSES = 6
"""Maximum per machine: enough for two jobs with all three sinks. Further sinks wait."""
STOP_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL, to write the steps that are already read."""
HUNG = "it hung and was killed; its server may be unreachable."


@dataclass
class Keeper:
    """The sink processes of one worker."""

    database: Database
    settings: Settings
    _running: dict[outbox.Claim, subprocess.Popen[bytes]] = field(default_factory=dict)

    def keep_until(self, stopping: Flag) -> None:
        """Check every `sweep_seconds` until `stopping` is set, then stop all processes."""
        heartbeat = Heartbeat(self.database, self.settings, SINKS)
        run_rounds(stopping, heartbeat, self.check_once, self.settings.sweep_seconds)
        self.end_all()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def check_once(self) -> None:
        """Reap processes that have ended, kill hung ones, start due ones. Raises SQLAlchemyError."""
        for claim, process in list(self._running.items()):
            self._check(claim, process)
        while len(self._running) < MAX_PROCESSES:
            with self.database.transaction() as session:
                due = outbox.claim_due(session, self.settings.pool)
            if due is None:
                return
            try:
                self._running[due] = self._started(due)
            except OSError as error:  # its claim expires
                logger.warning("sink not started", error=str(error))
                return

    def _check(self, claim: outbox.Claim, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is None:
            with self.database.reading() as session:
                if outbox.is_held(session, claim):
                    return
                is_hung = outbox.has_lapsed(session, claim)
            # a process that has not hung has released its claim
            end_process(process, 0 if is_hung else STOP_SECONDS)
            reason = HUNG if is_hung else None
        else:
            reason = None if code in (0, os.EX_TEMPFAIL) else _ended(code)
        del self._running[claim]
        if reason is not None:
            self._fail(claim, reason)

    def _fail(self, claim: outbox.Claim, reason: str) -> None:
        logger.warning("sink's process ended", job=claim.job_id, sink=claim.type, reason=reason)
        with self.database.transaction() as session:
            outbox.fail(session, claim, reason)

    def _started(self, claim: outbox.Claim) -> subprocess.Popen[bytes]:
        named = [claim.job_id, claim.type, str(claim.number)]
        command = bound_command([sys.executable, "-m", "worker.sinks", *named])
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def end_all(self) -> None:
        """Send SIGTERM to all; each may still write the steps that it has read and releases its claim."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            end_process(process, STOP_SECONDS)
        self._release_killed()
        self._running.clear()

    def _release_killed(self) -> None:
        """Release the claims of processes that could not do so, such as those that were still starting."""
        killed = [claim for claim, process in self._running.items() if process.returncode != 0]
        try:
            with self.database.transaction() as session:
                for claim in killed:
                    outbox.release(session, claim)
        except SQLAlchemyError as error:  # the claims expire
            logger.warning("sinks not released", error=reason_of(error))


def _ended(code: int) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}."
    return f"its process ended with exit code {code}."
