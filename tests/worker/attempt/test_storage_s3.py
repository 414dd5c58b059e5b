"""A worker with an S3 storage that disconnects, is unavailable or denies access."""

from collections.abc import Callable

import pytest
from sqlalchemy import select

from service.platform.db import Database
from service.platform.storage import RETRIES, Storage, StorageDenied
from service.platform.tables.core import Checkpoint, File
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.support.s3 import SECRET, SESSION_TOKEN, Bucket
from tests.support.s3_proxy import CUT, CUT_ANSWER, KEY_ID, pass_all, strike
from tests.support.servers import wait_until
from tests.worker.jobs import read_job
from tests.worker.outcomes import expected_weights, in_background, messages, run_until_idle, weights
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # one database: no test here depends on it

Submit = Callable[..., str]
ALL = "GET HEAD PUT POST DELETE"
DENIED_RESULTS = "The results were not stored: the storage denies access."


@pytest.fixture
def settings(settings: Settings, bucket: Bucket) -> Settings:
    return settings.model_copy(update={"storage_url": bucket.location})


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the client's retries and shorten the worker's pauses."""
    monkeypatch.setitem(RETRIES, "max_retries", 0)
    monkeypatch.setattr("worker.attempt.attempt.FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("worker.attempt.attempt.LAST_PAUSE_SECONDS", 0.05)


def keys_referred_to(database: Database) -> set[str]:
    with database.reading() as session:
        checkpoints = session.execute(select(Checkpoint.state_key, Checkpoint.adapter_key)).all()
        files = session.scalars(select(File.storage_key)).all()
    return {key for row in checkpoints for key in row} | set(files)


@pytest.mark.parametrize("fault", [CUT, CUT_ANSWER, 500])
def test_every_kind_of_object_survives_an_interrupted_upload(
    worker: Worker, database: Database, storage: Storage, bucket: Bucket, submit: Submit, fault: int
) -> None:
    job_id = submit()
    rules = [strike(fault, "PUT", f"{job_id}/{kind}", times=1) for kind in ("checkpoints", "results")]
    bucket.proxy.rule = lambda method, path: rules[0](method, path) or rules[1](method, path)
    run_job(worker)
    assert len(bucket.proxy.struck) == 2
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)
    assert weights(database, storage, job_id) == expected_weights()
    assert keys_referred_to(database) == set(bucket.keys)


def test_a_checkpoint_that_cannot_be_uploaded_is_not_published_and_training_continues(
    worker: Worker, database: Database, storage: Storage, bucket: Bucket, submit: Submit
) -> None:
    job_id = submit({"*": {"step_seconds": 0.05}})
    bucket.proxy.rule = strike(CUT, "PUT", "checkpoints/5-1/adapter")
    run_job(worker)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.checkpoint_step) == ("succeeded", 1, 0)
    assert messages(database, job_id, "warn") == [
        f"The checkpoint of step {step} was not stored: the storage does not answer." for step in (5, 10)
    ]
    assert f"jobs/{job_id}/checkpoints/5-1/adapter.tar.gz" not in bucket.keys
    assert keys_referred_to(database) <= set(bucket.keys)
    assert weights(database, storage, job_id) == expected_weights()


def test_a_storage_outage_during_training_and_at_the_end_only_delays_the_job(
    worker: Worker, database: Database, storage: Storage, bucket: Bucket, submit: Submit
) -> None:
    job_id = submit()
    bucket.proxy.rule = strike(503, ALL, f"jobs/{job_id}")
    thread = in_background(worker)
    results = f"PUT /{bucket.name}/a/prefix/jobs/{job_id}/results/1/adapter.tar.gz"
    wait_until(lambda: bucket.proxy.struck.count(results) > 3, 120)
    bucket.proxy.rule = pass_all
    thread.join()
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)
    assert weights(database, storage, job_id) == expected_weights()


def test_a_storage_outage_before_training_only_delays_the_job(
    worker: Worker, database: Database, bucket: Bucket, submit: Submit
) -> None:
    job_id = submit()
    bucket.proxy.rule = strike(503, ALL)
    thread = in_background(worker)
    wait_until(lambda: len(bucket.proxy.struck) > 30, 120)
    bucket.proxy.rule = pass_all
    thread.join()
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)


def test_a_worker_that_waits_for_the_storage_can_be_drained(
    worker: Worker, database: Database, bucket: Bucket, submit: Submit
) -> None:
    job_id = submit()
    bucket.proxy.rule = strike(503, ALL)
    thread = in_background(worker)
    wait_until(lambda: bucket.proxy.struck, 120)
    worker.draining.set()
    thread.join(timeout=45)
    assert not thread.is_alive()
    job = read_job(database, job_id)
    assert (job.state, job.failures) == ("queued", 0)
    assert messages(database, job_id)[-1] == "The job's files were not fetched: the storage does not answer."


def test_a_worker_without_storage_access_requeues_its_job_and_claims_none_until_access_returns(
    worker: Worker, database: Database, bucket: Bucket, submit: Submit
) -> None:
    first, second = submit(), submit()
    bucket.proxy.rule = strike(403, ALL)
    run_until_idle(worker, database)
    assert run_job(worker) is False
    jobs = [read_job(database, job_id) for job_id in (first, second)]
    assert [(job.state, job.attempt, job.failures) for job in jobs] == [("queued", 1, 1), ("queued", 0, 0)]
    reason = "The job's files were not fetched: the storage denies access."
    assert messages(database, first)[-1] == reason
    bucket.proxy.rule = pass_all
    run_until_idle(worker, database)
    assert {read_job(database, job_id).state for job_id in (first, second)} == {"succeeded"}


def test_a_denial_is_reported_without_credentials(
    worker: Worker, database: Database, bucket: Bucket, submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = submit()
    bucket.proxy.rule = strike(403, ALL)
    run_job(worker)
    found = "".join(capsys.readouterr()) + "".join(messages(database, job_id))
    assert "403 Forbidden" in found
    for secret in (SECRET, SESSION_TOKEN, KEY_ID):
        assert secret not in found


def test_denied_results_are_not_retried_endlessly(
    worker: Worker, database: Database, bucket: Bucket, submit: Submit
) -> None:
    job_id = submit()
    bucket.proxy.rule = strike(403, "PUT", f"jobs/{job_id}")
    run_until_idle(worker, database)
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.attempt, job.failure["code"]) == ("failed", 3, "poisoned")
    assert job.failure["message"].endswith(f"The last: {DENIED_RESULTS}")
    found = messages(database, job_id)
    assert found.count(DENIED_RESULTS) == 3
    assert "The checkpoint of step 5 was not stored: the storage denies access." in found


def test_a_missing_bucket_is_not_reported_as_a_deleted_dataset(
    worker: Worker, database: Database, bucket: Bucket, submit: Submit
) -> None:
    job_id = submit()
    bucket.proxy.rule = strike(404, ALL)
    run_job(worker)
    job = read_job(database, job_id)
    assert (job.state, job.failures) == ("queued", 1)
    assert messages(database, job_id)[-1] == "The job's files were not fetched: the storage denies access."


def test_a_worker_does_not_start_on_a_missing_bucket(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"storage_url": "s3://no-such-bucket/prefix"})
    with pytest.raises(StorageDenied, match="NoSuchBucket"):
        Worker.open(elsewhere, "test-worker")
