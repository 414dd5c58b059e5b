"""MLflow: one run per job, in the tracking store named by MLFLOW_TRACKING_URI.

A batch may be interrupted, so an existing run is read first: only missing values are written.
"""

import os
import posixpath
import re
import time
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
    """The name without characters that MLflow refuses; the metric of a grader's part may have any name."""
    return posixpath.normpath(re.sub(r"[^\w.\-/ ]", "_", name)).lstrip("./")[:MAX_NAME_CHARS]


class MlflowRun:
    """The job's run, which is created if it does not exist."""

    def __init__(self, job: SinkJob) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{job.home / 'mlflow.db'}"
        mlflow.set_tracking_uri(uri)
        self._client = MlflowClient()
        experiment = mlflow.set_experiment(job.settings.get("experiment", EXPERIMENT)).experiment_id
        run = self._existing(job, experiment) or self._created(job, experiment)
        self._run_id = run.info.run_id
        histories = {key: self._client.get_metric_history(self._run_id, key) for key in run.data.metrics}
        self._written = {(key, metric.step) for key, history in histories.items() for metric in history}
        # the newest step may lack some of its values
        self.last_step = max((step for _, step in self._written), default=0) - 1
        self._unwritten: list[Metric] = []

    def _existing(self, job: SinkJob, experiment: str) -> Run | None:
        runs = self._client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{job.job_id}'")
        if not runs:
            return None
        self._client.update_run(runs[0].info.run_id, status="RUNNING")
        return runs[0]

    def _created(self, job: SinkJob, experiment: str) -> Run:
        tags = {JOB_TAG: job.job_id, "grpo.tenant": job.tenant}
        run = self._client.create_run(experiment, tags=tags, run_name=job.job_id)
        params = [Param(name, str(value)[:MAX_PARAM_CHARS]) for name, value in job.config.items()]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run.info.run_id, params=params[start : start + MAX_PARAMS])
        return run

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
