"""MLflow: one run per job, in the tracking store named by MLFLOW_TRACKING_URI.

Values are written in order of steps, so an existing run's newest values show where to continue. Its whole
history could take longer to read than a claim lasts.
"""

import os
import re
import time
import zlib
from collections.abc import Mapping

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run

from service.jobs.model.states import TERMINAL, JobState
from worker.sinks.base import SinkJob

EXPERIMENT = "grpo"
JOB_TAG = "grpo.job_id"
ENDINGS = {JobState.SUCCEEDED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}
MAX_PARAM_CHARS = 500
MAX_NAME_CHARS = 250
MAX_PARAMS = 100
MAX_METRICS = 1000
"""MLflow's own limits for one batch."""


def allowed(name: str) -> str:
    """The name without what MLflow refuses; the metric of a grader's part may have any name.

    Changed parts of the path end with a checksum, so that different names remain different.
    """
    return "/".join(_allowed_part(part) for part in name.split("/"))[:MAX_NAME_CHARS]


def _allowed_part(part: str) -> str:
    shown = re.sub(r"[^\w.\- ]", "_", part)
    is_allowed = shown == part and part not in ("", ".", "..")
    return part if is_allowed else f"{shown}_{zlib.crc32(part.encode()):08x}"


class MlflowRun:
    """The job's run, which is created if it does not exist."""

    def __init__(self, job: SinkJob) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{job.home / 'mlflow.db'}"
        mlflow.set_tracking_uri(uri)
        self._client = MlflowClient()
        experiment = mlflow.set_experiment(job.settings.get("experiment", EXPERIMENT)).experiment_id
        run = self._existing(job, experiment) or self._created(job, experiment)
        self._run_id = run.info.run_id
        self._log_missing_params(run, job)
        newest = run.data.to_proto().metrics  # one value for each name
        step = max((metric.step for metric in newest), default=0)
        # a batch may have been interrupted, so that the newest step lacks some of its values
        self._written = {(metric.key, step) for metric in newest if metric.step == step}
        self.last_step = step - 1
        self._unwritten: list[Metric] = []

    def _existing(self, job: SinkJob, experiment: str) -> Run | None:
        runs = self._client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{job.job_id}'")
        if not runs:
            return None
        self._client.update_run(runs[0].info.run_id, status="RUNNING")
        return runs[0]

    def _created(self, job: SinkJob, experiment: str) -> Run:
        tags = {JOB_TAG: job.job_id, "grpo.tenant": job.tenant}
        return self._client.create_run(experiment, tags=tags, run_name=job.job_id)

    def _log_missing_params(self, run: Run, job: SinkJob) -> None:
        """Log the parameters that the run lacks: all of a new one, or after an interruption the rest."""
        missing = job.config.keys() - run.data.params.keys()
        params = [Param(name, str(job.config[name])[:MAX_PARAM_CHARS]) for name in sorted(missing)]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now, named = int(time.time() * 1000), ((allowed(name), value) for name, value in values.items())
        self._unwritten += [
            Metric(name, value, now, step) for name, value in named if (name, step) not in self._written
        ]

    def flush(self) -> None:
        for start in range(0, len(self._unwritten), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=self._unwritten[start : start + MAX_METRICS])
        self._unwritten.clear()

    def close(self, state: JobState) -> None:
        self.flush()
        if state in TERMINAL:
            self._client.set_terminated(self._run_id, status=ENDINGS[state])
