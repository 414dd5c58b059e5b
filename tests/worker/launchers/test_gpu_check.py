"""A worker whose GPU does not work claims no job, and the service shows it. The trial is a child process."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import pytest
import torch
from sqlalchemy import update

from grpo_engine.run.gpu_trial import try_device
from service.ops.doctor import stores
from service.ops.health import helpers_check
from service.platform.db import Database
from service.platform.tables.workers import WorkerHelper
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.worker.jobs import read_job
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.launchers import gpu_check
from worker.launchers.gpu_reservation import HostGpus

pytestmark = on_sqlite  # nothing here depends on the database

Submit = Callable[..., str]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"gpus": 2})


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
    worker = replace(worker, gpus=HostGpus.of(settings))
    assert not run_job(worker)
    assert read_job(database, job_id).state == "queued"
    assert "sees none of this machine's 1 GPUs" in "".join(capsys.readouterr())
    with database.transaction() as session:
        session.execute(update(WorkerHelper).values(seen_at=WorkerHelper.seen_at - 61))
    assert helpers_check(database, settings).startswith("gpu not seen for 6")
    (finding,) = [one for one in stores.database(settings) if one.check == "helpers"]
    assert "`a GPU fails`" in finding.advice

    assert not run_job(worker)  # the next trial is not due
    monkeypatch.setattr(gpu_check, "try_gpus", lambda *_given: None)
    worker.gpu_check.try_again(["GPU-8a"])
    assert run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert helpers_check(database, settings) == "none"


def test_a_failed_attempt_makes_a_trial_of_its_gpus_due(
    worker: Worker, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []
    monkeypatch.setattr(gpu_check, "try_gpus", lambda _settings, gpus: tried.append(list(gpus)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a,GPU-8b")
    worker = replace(worker, gpus=HostGpus.of(settings))
    submit()
    submit({"*": {"die_at": 3}}, required_gpus=1)
    submit()
    for _ in range(3):
        assert run_job(worker)
    assert tried == [["GPU-8a", "GPU-8b"], ["GPU-8a"]]


def test_a_gpu_that_works_gets_jobs_while_another_fails(
    worker: Worker, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(_settings: Settings, gpus: list[str]) -> str | None:
        return "it is lost" if "GPU-8b" in gpus else None

    monkeypatch.setattr(gpu_check, "try_gpus", tried)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a,GPU-8b")
    worker = replace(worker, gpus=HostGpus.of(settings))
    with worker.gpus.reserve() as gpus:
        assert worker.gpu_check.working(gpus) == ["GPU-8a"]
    submit(required_gpus=2)
    assert not run_job(worker)
    submit(required_gpus=1)
    assert run_job(worker)


def test_a_device_that_computes_passes_the_trial() -> None:
    assert try_device(torch.device("cpu")) == "computes"


def test_a_trial_does_not_count_toward_the_lease(
    worker: Worker, database: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial may take longer than a lease, which begins with the claim."""
    ahead = [0.0]
    for module in ("worker.attempt.runner", "worker.attempt.lease"):
        monkeypatch.setattr(f"{module}.monotonic", lambda: monotonic() + ahead[0])
    trial_seconds = 2 * settings.lease_seconds
    monkeypatch.setattr(gpu_check, "try_gpus", lambda *_given: ahead.__setitem__(0, trial_seconds))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a")
    job_id = submit()
    assert run_job(replace(worker, gpus=HostGpus.of(settings)))
    assert ahead == [trial_seconds]
    assert read_job(database, job_id).state == "succeeded"
