"""Storage that is unavailable, damaged or full, a full disk of the worker, and an unreadable catalogue."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from grpo_engine.config.job import RunConfig
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, Checkpoint, File
from tests.conftest import on_sqlite
from tests.support.servers import wait_until
from tests.worker.conftest import engine_pids
from tests.worker.jobs import insert_dataset, insert_job, read_job
from tests.worker.outcomes import (
    damage,
    expected_weights,
    in_background,
    make_due,
    messages,
    metric_steps,
    weights,
)
from worker.attempt.attempt import STORAGE_TRIES, Attempt
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # nothing here depends on the database

Submit = Callable[..., str]


def not_stored(step: int) -> str:
    return f"The checkpoint of step {step} was not stored: the storage does not answer."


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the worker's pauses."""
    monkeypatch.setattr("worker.attempt.attempt.FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("worker.attempt.attempt.LAST_PAUSE_SECONDS", 0.05)


@pytest.fixture
def outage(worker: Worker, impatience: None) -> Path:
    """A file that prevents the storage of job objects until it is removed."""
    barrier = Path(worker.settings.storage_location.removeprefix("file://")) / "jobs"
    barrier.write_text("")
    return barrier


def kept_steps(database: Database) -> list[int]:
    with database.reading() as session:
        return list(session.scalars(select(Checkpoint.step).order_by(Checkpoint.step)))


def test_an_unstored_checkpoint_is_stored_with_the_next_one(
    worker: Worker, database: Database, storage: Storage, submit: Submit, outage: Path
) -> None:
    job_id = submit({"*": {"step_seconds": 0.1}})
    thread = in_background(worker)
    wait_until(lambda: not_stored(5) in messages(database, job_id, "warn"), 120)
    outage.unlink()
    thread.join()
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)
    assert kept_steps(database) == [5, 10]
    assert weights(database, storage, job_id) == expected_weights()


def test_results_wait_for_the_storage(
    worker: Worker,
    database: Database,
    storage: Storage,
    submit: Submit,
    outage: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put, tried = Storage.put, []

    def counted(storage: Storage, key: str, path: Path) -> None:
        tried.append(key)
        put(storage, key, path)

    monkeypatch.setattr(Storage, "put", counted)
    job_id = submit()
    thread = in_background(worker)
    results = f"jobs/{job_id}/results/1/adapter.tar.gz"
    wait_until(lambda: tried.count(results) > 2 * STORAGE_TRIES, 120)
    outage.unlink()
    thread.join()
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)
    assert weights(database, storage, job_id) == expected_weights()


def test_a_draining_worker_does_not_wait_for_the_storage(
    worker: Worker, database: Database, submit: Submit, outage: Path
) -> None:
    job_id = submit()
    thread = in_background(worker)
    wait_until(lambda: not_stored(10) in messages(database, job_id, "warn"), 120)
    worker.draining.set()
    thread.join(timeout=60)
    assert not thread.is_alive()
    job = read_job(database, job_id)
    assert (job.state, job.failures) == ("queued", 0)
    assert messages(database, job_id)[-1] == "The results were not stored: the storage does not answer."


def fill_disk(*_arguments: object) -> None:
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")


@pytest.mark.parametrize(
    "place",
    [
        "service.platform.storage.Storage.download",
        "worker.launchers.run_files.pack",
        "worker.launchers.run_directory._create_locked",
    ],
)
def test_a_full_disk_on_the_worker_fails_the_job_at_once(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    job_id = submit()
    monkeypatch.setattr(place, fill_disk)
    assert run_job(worker) is True
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.attempt, job.failure["code"]) == ("failed", 1, "disk_full")
    assert engine_pids(worker.settings) == []


def test_a_worker_without_its_folder_requeues_the_job_and_reveals_no_path(
    worker: Worker, database: Database, submit: Submit
) -> None:
    job_id = submit()
    worker.settings.runs_dir.write_text("a file where the folder should be")
    assert run_job(worker) is True
    job = read_job(database, job_id)
    assert (job.state, job.failures, job.lease_owner) == ("queued", 1, None)
    reason = messages(database, job_id)[-1]
    assert re.fullmatch(
        r"Operating system error on the worker: Not a directory \(id err-\w+\); see the worker's log.", reason
    )


def test_a_damaged_dataset_fails_the_job_for_good(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit()
    damage(storage, f"files/{read_job(database, job_id).training_file}")
    run_job(worker)
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.failure["code"]) == ("failed", "dataset_invalid")
    assert f"{job.training_file} is damaged" in job.failure["message"]


def test_a_damaged_download_is_repeated(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, download, fetched = submit(), Storage.download, []

    def first_one_torn(storage: Storage, key: str, path: Path) -> None:
        download(storage, key, path)
        if not fetched:
            path.write_bytes(path.read_bytes()[:-10])
        fetched.append(key)

    monkeypatch.setattr(Storage, "download", first_one_torn)
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert len(fetched) == 2


@pytest.mark.parametrize("has_other_files", [False, True])
def test_a_storage_folder_that_is_not_mounted_costs_an_attempt_and_no_checkpoint(
    worker: Worker, database: Database, submit: Submit, storage: Storage, has_other_files: bool
) -> None:
    job_id = submit({"1": {"die_at": 7}})
    run_job(worker)
    folder = Path(worker.settings.storage_location.removeprefix("file://"))
    folder.rename(folder.with_name("unmounted"))
    folder.mkdir()
    if has_other_files:
        (folder / "jobs").mkdir()
        (folder / "README").touch()
    make_due(database)
    run_job(worker)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("queued", 2, 2)
    reason = "The job's files were not fetched: an object is missing in the storage."
    assert messages(database, job_id)[-1] == reason
    make_due(database)
    assert run_job(worker) is False, "it claims nothing until the folder is mounted"
    shutil.rmtree(folder)
    assert run_job(worker) is False
    folder.with_name("unmounted").rename(folder)
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert "Training resumed from step 5 on cpu (float32, sampler fake)." in messages(database, job_id)
    assert weights(database, storage, job_id) == expected_weights()


def test_damaged_weights_of_a_parent_fail_the_job_for_good(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    parent = insert_job(database, insert_dataset(database, storage))
    run_job(worker)
    with database.reading() as session:
        query = select(File).join(Artifact, Artifact.id == File.id).where(Artifact.kind == "adapter")
        file = session.scalars(query).one()
    damage(storage, file.storage_key)
    child = submit(model=read_job(database, parent).fine_tuned_model)
    run_job(worker)
    job = read_job(database, child)
    assert job.failure is not None
    assert (job.state, job.failure["code"]) == ("failed", "model_not_found")
    assert f"({parent}) are damaged" in job.failure["message"]


def test_the_engine_receives_the_job_s_creation_time(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def read_config(path: Path) -> None:
        seen.append(RunConfig.model_validate_json((path / "config.json").read_text()).created_at)

    monkeypatch.setattr("worker.launchers.run_directory._shrink", read_config)
    job_id = submit(created_at=1_700_000_000.5)
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    assert seen == [1_700_000_000.5]


def test_a_running_job_waits_for_a_catalogue_that_became_unreadable(
    worker: Worker, database: Database, storage: Storage, submit: Submit, impatience: None
) -> None:
    job_id = submit({"*": {"step_seconds": 0.1}})
    thread = in_background(worker)
    wait_until(lambda: metric_steps(database, job_id), 120)
    worker.catalog.file.write_text("{")
    not_stored = "The checkpoint of step 10 was not stored: the model catalogue cannot be read."
    wait_until(lambda: not_stored in messages(database, job_id, "warn"), 120)
    worker.catalog.file.unlink()
    thread.join()
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)
    assert weights(database, storage, job_id) == expected_weights()


def test_a_worker_with_an_unreadable_catalogue_requeues_its_job_and_claims_none_until_it_can_be_read(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit()

    def break_catalogue(attempt: Attempt) -> None:
        worker.catalog.file.write_text("{")

    with monkeypatch.context() as patch:
        patch.setattr("worker.attempt.runner.await_model", break_catalogue)
        assert run_job(worker) is True
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("queued", 1, 0)
    reason = "The job's files were not fetched: the model catalogue cannot be read."
    assert messages(database, job_id)[-1] == reason
    assert run_job(worker) is False
    worker.catalog.file.unlink()
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
