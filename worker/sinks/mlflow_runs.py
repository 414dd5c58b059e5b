"""MLflow: one run per job, in the tracking store named by MLFLOW_TRACKING_URI.

A batch may be interrupted, so an existing run is read first: only missing values are written.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException

from service.jobs.model.states import TERMINAL, JobState
from worker.sinks.base import SinkJob

EXPERIMENT = "grpo"
JOB_TAG = "grpo.job_id"
ENDINGS = {JobState.SUCCEEDED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}
MAX_PARAM_CHARS = 500
MAX_NAME_CHARS = 250
MAX_PARAMS = 100
MAX_METRICS = 1000
"""MLflow's own limits of one batch."""


def allowed(name: str) -> str:
    """The name without characters that MLflow refuses: parts of a grader may have any name."""
    return posixpath.normpath(re.sub(r"[^\w.\-/ ]", "_", name)).lstrip("./")[:MAX_NAME_CHARS]


class MlflowRun:
    """The job's run; created if it does not exist."""

    def __init__(self, job: SinkJob) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{job.home / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=uri)
        run = self._found(job) or self._made(job)
        self._run_id = run.info.run_id
        histories = {key: self._client.get_metric_history(self._run_id, key) for key in run.data.metrics}
        self._there = {(key, metric.step) for key, history in histories.items() for metric in history}
        # the newest step may lack some of its values
        self.last_step = max((step for _, step in self._there), default=0) - 1
        self._waiting: list[Metric] = []

    def _experiment(self, job: SinkJob) -> str:
        name = job.settings.get("experiment", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another sink created it first, or it cannot be created
            made = self._client.get_experiment_by_name(name)
            if made is None:
                raise
            return str(made.experiment_id)

    def _found(self, job: SinkJob) -> Run | None:
        self._experiment_id = self._experiment(job)
        runs = self._client.search_runs([self._experiment_id], f"tags.`{JOB_TAG}` = '{job.job_id}'")
        if not runs:
            return None
        self._client.update_run(runs[0].info.run_id, status="RUNNING")
        return runs[0]

    def _made(self, job: SinkJob) -> Run:
        tags = {JOB_TAG: job.job_id, "grpo.tenant": job.tenant}
        run = self._client.create_run(self._experiment_id, tags=tags, run_name=job.job_id)
        params = [Param(name, str(value)[:MAX_PARAM_CHARS]) for name, value in job.config.items()]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run.info.run_id, params=params[start : start + MAX_PARAMS])
        return run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now, named = int(time.time() * 1000), ((allowed(name), value) for name, value in values.items())
        missing = [(name, value) for name, value in named if (name, step) not in self._there]
        self._waiting += [Metric(name, value, now, step) for name, value in missing]
        if len(self._waiting) >= MAX_METRICS // 2:
            self.flush()

    def flush(self) -> None:
        for start in range(0, len(self._waiting), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=self._waiting[start : start + MAX_METRICS])
        self._waiting.clear()

    def close(self, state: JobState) -> None:
        self.flush()
        if state in TERMINAL:
            self._client.set_terminated(self._run_id, status=ENDINGS[state])
