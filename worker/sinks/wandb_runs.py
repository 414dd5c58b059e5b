"""Weights & Biases: one run per job, with the job's id; WANDB_MODE, WANDB_API_KEY etc. as W&B documents them.

Online, the server's newest step shows where to continue: a process of W&B that was killed may have written
steps to its file on this disk without uploading them. Offline, the newest step in these files does.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from service.jobs.model.states import JobState
from worker.sinks.base import SinkJob
from worker.sinks.wandb_files import newest_step

INIT_SECONDS = 60.0
"""Maximum time for the server's first response; shorter than a claim."""


class WandbRun:
    """The job's run. If W&B is offline, each writing process has its own file."""

    def __init__(self, job: SinkJob) -> None:
        folder = Path(os.environ.get("WANDB_DIR") or job.home)
        folder.mkdir(parents=True, exist_ok=True)
        given = job.settings
        self._run = wandb.init(
            id=job.job_id,
            project=given["project"],
            entity=given.get("entity"),
            name=given.get("name", job.job_id),
            tags=given.get("tags"),
            config=dict(job.config),
            dir=str(folder),
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            settings=wandb.Settings(
                console="off",
                silent=True,
                init_timeout=INIT_SECONDS,
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )
        self.last_step = self._offline_step(job, folder) if self._run.offline else self._run.starting_step - 1

    def _offline_step(self, job: SinkJob, folder: Path) -> int:
        written = newest_step(folder, job.job_id)
        return job.known_step if written is None else written

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing, because W&B's own process writes and uploads. Steps that it loses are written again."""

    def close(self, state: JobState) -> None:
        self._run.finish(exit_code=1 if state is JobState.FAILED else 0)
