"""Weights & Biases: one run a job, its id the job's; WANDB_MODE, WANDB_API_KEY and the rest as W&B has them.

W&B's own file of a run is on this disk whether it is sent or not, and says where to go on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from service.jobs.model.states import JobState
from worker.sinks.base import About
from worker.sinks.wandb_files import newest_step

INIT_SECONDS = 60.0
"""For the first answer of the server; shorter than a claim."""


class WandbRun:
    """The job's run; offline each process that writes has its own file of it."""

    def __init__(self, about: About) -> None:
        folder = Path(os.environ.get("WANDB_DIR") or about.home)
        folder.mkdir(parents=True, exist_ok=True)
        written = newest_step(folder, about.job_id)
        given = about.settings
        self._run = wandb.init(
            id=about.job_id,
            project=given["project"],
            entity=given.get("entity"),
            name=given.get("name", about.job_id),
            tags=given.get("tags"),
            config=dict(about.config),
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
        here = about.known_step if written is None else written
        self.last_step = max(here, self._run.step - 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Its own process writes and sends; what that one had not written when it died is written again."""

    def close(self, state: JobState) -> None:
        self._run.finish(exit_code=1 if state is JobState.FAILED else 0)
