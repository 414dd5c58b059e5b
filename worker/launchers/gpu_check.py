"""Tries a worker's GPUs before it claims a job; while they fail it claims none.

The trial is a child process of the engine's interpreter: the worker does not import torch, and a broken
driver may hang or kill a process. A failure is a heartbeat row that is never renewed, so that `/readyz` is
`degraded` and `grpo doctor` names the host. The row is deleted when the GPUs work again.
Boundary: between jobs. During a job its engine reports the errors of its device.
"""

import os
import subprocess
from dataclasses import dataclass
from time import monotonic

import structlog

from grpo_engine.process.gpus import count_visible_gpus
from service.ops import helper_heartbeats
from service.ops.helper_heartbeats import GPU, Heartbeat
from service.platform.db import Database
from service.settings import Settings
from worker.launchers.local import engine_environment

logger = structlog.get_logger()

RETRY_SECONDS = 30.0
"""Time from a trial that failed to the next one."""
TRIAL_SECONDS = 50.0
"""Longest trial: a worker whose main loop rests for a minute counts as dead."""


@dataclass(eq=False)
class GpuCheck:
    """The state of this worker's GPUs: tried once, and again after a failure of an attempt or a trial."""

    settings: Settings
    database: Database
    due_at: float | None = 0.0
    """When to try; None: they worked, and no attempt has failed since."""

    def passes(self) -> bool:
        """Whether jobs can run on this worker's GPUs, after a trial if one is due. Raises SQLAlchemyError."""
        if self.due_at is not None and monotonic() >= self.due_at:
            reason = try_gpus(self.settings)
            self.due_at = monotonic() + RETRY_SECONDS if reason else None
            self._record(reason)
        return self.due_at is None

    def try_again(self) -> None:
        """Try before the next claim: an attempt has failed, perhaps because of a GPU."""
        self.due_at = 0.0

    def _record(self, reason: str | None) -> None:
        if reason is None:
            Heartbeat(self.database, self.settings, GPU).leave()
            return
        logger.error("a GPU fails; no job is claimed", reason=reason)
        with self.database.transaction() as session:
            helper_heartbeats.expect(session, self.settings.pool, [GPU])


def try_gpus(settings: Settings) -> str | None:
    """Try all visible GPUs. Returns why they do not work; None: they do, or jobs run on the CPU."""
    if settings.runtime.device == "cpu" or not count_visible_gpus(os.environ):
        return None
    try:
        done = subprocess.run(
            [str(settings.engine_python), "-P", "-m", "grpo_engine.run.gpu_trial"],
            env=engine_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    last_line = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return last_line if done.returncode else None
