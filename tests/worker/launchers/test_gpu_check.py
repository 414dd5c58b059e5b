"""A worker whose GPU does not work claims no job, and the service shows it. The trial is a child process."""

from collections.abc import Callable

import pytest
import torch
from sqlalchemy import update

from grpo_engine.run.gpu_trial import try_device
from service.ops.doctor import stores
from service.ops.health import helpers_check
from service.platform.db import Database
from service.platform.tables.core import WorkerHelper
from service.settings import Settings
from tests.worker.jobs import read_job
from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job

Submit = Callable[..., str]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Nothing here depends on the database."""
    return sqlite_url


def test_a_worker_whose_gpu_fails_claims_nothing_until_it_works_again(
    worker: Worker,
    database: Database,
    settings: Settings,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id = submit()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a")
    assert not run_job(worker)
    assert read_job(database, job_id).state == "queued"
    assert "sees none of this machine's 1 GPUs" in "".join(capsys.readouterr())
    with database.transaction() as session:
        session.execute(update(WorkerHelper).values(seen_at=WorkerHelper.seen_at - 61))
    assert helpers_check(database, settings).startswith("gpu not seen for 6")
    (finding,) = [one for one in stores.database(settings) if one.check == "helpers"]
    assert "`a GPU fails`" in finding.advice

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert not run_job(worker)  # the next trial is not due
    assert worker.gpus is not None
    worker.gpus.try_again()
    assert run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert helpers_check(database, settings) == "none"


def test_a_failed_attempt_makes_a_trial_due(worker: Worker, submit: Submit) -> None:
    assert worker.gpus is not None
    submit()
    assert run_job(worker)
    assert worker.gpus.due_at is None
    submit({"*": {"die_at": 3}})
    assert run_job(worker)
    assert worker.gpus.due_at == 0.0


def test_a_device_that_computes_passes_the_trial() -> None:
    assert try_device(torch.device("cpu")) == "computes"
