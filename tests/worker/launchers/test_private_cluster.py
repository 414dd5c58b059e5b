"""A job with several ranks on one machine runs on a private Ray cluster, which ends with its attempt."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from service.platform.db import Database
from service.platform.storage import Storage
from tests.worker.conftest import engine_pids
from tests.worker.jobs import read_job
from tests.worker.outcomes import expected_weights, messages, metric_steps, weights
from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job
from worker.launchers.gpu_reservation import HostGpus

Submit = Callable[..., str]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One of the two: Ray takes long to start."""
    return sqlite_url


@pytest.fixture
def two_gpus(worker: Worker) -> Worker:
    """The worker with two declared GPUs."""
    settings = worker.settings.model_copy(update={"gpus": 2})
    return replace(worker, settings=settings, gpus=HostGpus.of(settings))


@pytest.mark.slow
def test_two_ranks_train_and_leave_nothing(
    two_gpus: Worker, submit: Submit, database: Database, storage: Storage
) -> None:
    job_id = submit(required_gpus=2)
    assert run_job(two_gpus)
    job = read_job(database, job_id)
    assert (job.state, job.attempt) == ("succeeded", 1), messages(database, job_id)
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()
    assert not engine_pids(two_gpus.settings)
