"""Tests a worker's GPUs before it claims a job; a GPU that fails gets no job.

The trial is a child process with the engine's interpreter, because the worker does not import torch, and a
broken driver may hang or kill a process. A failure is a heartbeat row that is never renewed, so that
`/readyz` is `degraded` and `grpo doctor` names the host. The row is deleted when the GPUs work again.
Boundary: between jobs. During a job, its engine reports the errors of its device.
"""

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import structlog

from grpo_engine.process.gpus import VISIBLE_DEVICES
from service.ops import helper_heartbeats
from service.ops.helper_heartbeats import GPU, Heartbeat
from service.platform.db import Database
from service.settings import Settings
from worker.launchers.gpu_reservation import Reservation
from worker.launchers.local import engine_environment

logger = structlog.get_logger()

RETRY_SECONDS = 30.0
"""Time from a failed trial to the next one."""
TRIAL_SECONDS = 50.0
"""Maximum time of a trial; a worker whose main loop pauses for a minute counts as dead."""


@dataclass(eq=False)
class GpuCheck:
    """State of this worker's GPUs, which are tried once, and again after an attempt or a trial has failed."""

    settings: Settings
    database: Database
    due_at: dict[str, float] = field(default_factory=dict)
    """GPU → when to try it; infinity: it worked, and no attempt on it has failed since."""

    def working(self, gpus: Reservation) -> list[str]:
        """The reserved GPUs that work; those that are due are tried first. Raises SQLAlchemyError."""
        if not gpus.are_real:
            return list(gpus.names)
        now = monotonic()
        if due := [name for name in gpus.names if now >= self.due_at.get(name, 0.0)]:
            self._try(due)
        return [name for name in gpus.names if self.due_at[name] == inf]

    def _try(self, gpus: list[str]) -> None:
        """Try them together and, if that fails, each alone, so that one that fails excludes no other."""
        reason = try_gpus(self.settings, gpus)
        if reason and len(gpus) > 1:
            for name in gpus:
                self._try([name])
            return
        self.due_at |= dict.fromkeys(gpus, monotonic() + RETRY_SECONDS if reason else inf)
        self._record(reason)

    def num_not_failing(self, gpus: Iterable[str]) -> int:
        """How many of the GPUs have not failed their last trial; those of running jobs are not tried."""
        return sum(self.due_at.get(name, 0.0) in (0.0, inf) for name in gpus)

    def try_again(self, gpus: Iterable[str]) -> None:
        """Try these GPUs before the next claim, because an attempt has failed, perhaps because of a GPU."""
        self.due_at |= dict.fromkeys(gpus, 0.0)

    def _record(self, reason: str | None) -> None:
        """Record whether a GPU of this worker fails."""
        if reason is None:
            if all(due_at in (0.0, inf) for due_at in self.due_at.values()):
                Heartbeat(self.database, self.settings, GPU).leave()
            return
        logger.error("a GPU fails; it gets no job", reason=reason)
        with self.database.transaction() as session:
            helper_heartbeats.expect(session, self.settings.pool, [GPU])


def try_gpus(settings: Settings, gpus: Iterable[str]) -> str | None:
    """Try these GPUs in one process. Returns why they do not work, or None if they do."""
    try:
        done = subprocess.run(
            [str(settings.engine_python), "-P", "-m", "grpo_engine.run.gpu_trial"],
            env=engine_environment(os.environ) | {VISIBLE_DEVICES: ",".join(gpus)},
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    last_line = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return last_line if done.returncode else None
