"""One job through a worker in this process, with a real engine process, on both databases."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select, update

from service.jobs.store import queue
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, Checkpoint, File, Job, Rollout
from tests.conftest import on_sqlite
from tests.support.servers import wait_until
from tests.worker.conftest import engine_pids
from tests.worker.jobs import read_job
from tests.worker.outcomes import expected_weights, in_background, messages, metric_steps, weights
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # nothing here depends on the database

Submit = Callable[..., str]


def test_an_empty_queue_returns_at_once(worker: Worker) -> None:
    assert run_job(worker) is False


def test_a_job_succeeds_with_metrics_rollouts_and_results(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit()
    assert run_job(worker) is True
    job = read_job(database, job_id)
    assert (job.state, job.step, job.total_steps, job.trained_tokens) == ("succeeded", 10, 10, 20)
    assert job.fine_tuned_model == f"ft:tiny:acme::{job_id.removeprefix('ftjob-')}"
    assert job.evaluation["baseline"] == {"step": 0, "reward": 0.1, "num_rows": 8.0}
    assert job.evaluation["best"]["step"] == job.evaluation["last"]["step"] == 10
    assert metric_steps(database, job_id) == list(range(1, 11))
    assert weights(database, storage, job_id) == expected_weights()
    with database.reading() as session:
        assert session.scalars(select(Rollout.step).order_by(Rollout.step)).all() == list(range(1, 11))
        kept = session.scalars(select(Checkpoint.step).order_by(Checkpoint.step)).all()
    assert list(kept) == [5, 10]


def test_the_metrics_table_is_a_file_with_step_first(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit()
    run_job(worker)
    query = (
        select(File)
        .join(Artifact, Artifact.id == File.id)
        .where(Artifact.job_id == job_id, Artifact.kind == "metrics")
    )
    with database.reading() as session:
        file = session.scalars(query).one()
    rows = list(csv.reader(io.StringIO(storage.get_bytes(file.storage_key).decode())))
    assert {"step", "loss", "reward", "eval/reward"} <= set(rows[0])
    assert rows[0][0] == "step"
    assert [int(row[0]) for row in rows[1:]] == list(range(1, 11))
    evaluated = rows[0].index("eval/reward")
    assert (rows[1][evaluated], rows[10][evaluated]) == ("", "0.2")
    assert (file.purpose, file.tenant) == ("fine-tune-results", "acme")


def test_retention_keeps_the_newest_and_the_best(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit(hyperparameters={"n_steps": 12, "checkpoint_interval": 2, "max_checkpoints": 2})
    run_job(worker)
    with database.reading() as session:
        rows = session.scalars(select(Checkpoint).order_by(Checkpoint.step)).all()
    assert [row.step for row in rows] == [10, 12]
    assert all(storage.exists(row.adapter_key) for row in rows)
    assert not storage.exists(f"jobs/{job_id}/checkpoints/2-1/state.tar")


@pytest.mark.parametrize(("verb", "ending"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_running_job_stops_with_its_checkpoint(
    worker: Worker,
    database: Database,
    submit: Submit,
    wait_for: Callable[..., None],
    verb: queue.Verb,
    ending: str,
) -> None:
    job_id = submit({"*": {"step_seconds": 0.05}}, hyperparameters={"n_steps": 1000})
    thread = in_background(worker)
    wait_for(job_id, phase="training")
    with database.transaction() as session:
        queue.request(session, "acme", job_id, verb)
    thread.join()
    job = read_job(database, job_id)
    assert job.state == ending
    assert job.checkpoint_step == job.step > 0
    assert metric_steps(database, job_id) == list(range(1, job.step + 1))
    assert engine_pids(worker.settings) == []


def test_a_deleted_dataset_fails_the_job_for_good(worker: Worker, database: Database, submit: Submit) -> None:
    job_id = submit()
    with database.transaction() as session:
        session.execute(update(Job).values(training_file="file-gone"))
    run_job(worker)
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.failure["code"]) == ("failed", "dataset_invalid")


def test_an_unknown_model_fails_the_job_for_good(worker: Worker, database: Database, submit: Submit) -> None:
    job_id = submit(model="gone")
    run_job(worker)
    job = read_job(database, job_id)
    assert job.failure is not None
    assert (job.state, job.failure["code"]) == ("failed", "model_not_found")


@pytest.mark.parametrize("is_listed", [False, True], ids=["found", "listed"])
def test_a_worker_whose_models_are_not_mounted_requeues_its_job_and_claims_none_until_they_are(
    worker: Worker, database: Database, submit: Submit, is_listed: bool
) -> None:
    folder = worker.settings.models_dir
    if is_listed:
        worker.catalog.file.write_text(json.dumps({"tiny": {"path": str(folder / "tiny")}}))
    folder.rename(folder.with_name("unmounted"))
    job_id = submit()
    assert run_job(worker) is True
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("queued", 1, 0)
    reason = "The job's files were not fetched: no base model is on the worker's machine."
    assert messages(database, job_id)[-1] == reason
    assert run_job(worker) is False
    folder.with_name("unmounted").rename(folder)
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"


def test_an_attempt_whose_run_directory_is_deleted_ends_at_once_and_is_tried_again(
    worker: Worker, database: Database, submit: Submit
) -> None:
    job_id = submit({"1": {"hang_at": 3}})
    thread = in_background(worker)
    wait_until(lambda: 2 in metric_steps(database, job_id), 120)
    shutil.rmtree(worker.settings.runs_dir)
    thread.join(timeout=60)
    assert not thread.is_alive()
    job = read_job(database, job_id)
    assert (job.state, job.failures) == ("queued", 1)
    assert "the engine's run directory was deleted (id " in messages(database, job_id)[-1]
    assert engine_pids(worker.settings) == []


def test_a_job_continues_an_earlier_job_s_adapter(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit()
    run_job(worker)
    parent = read_job(database, first).fine_tuned_model
    child = submit(model=parent)
    seen: list[str] = []
    monkeypatch.setattr(
        "worker.launchers.run_directory._shrink", lambda path: seen.append((path / "config.json").read_text())
    )
    run_job(worker)
    assert read_job(database, child).state == "succeeded"
    folder = worker.settings.runs_dir.resolve() / child / "1"
    assert '"adapter": "./parent_adapter"' in seen[0]
    assert f'"path": "{worker.settings.models_dir}/tiny"' in seen[0]
    assert (folder / "parent_adapter" / "adapter_model.safetensors").read_bytes() == expected_weights()


def test_a_job_continues_a_failed_job_s_checkpoint(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit()
    run_job(worker)
    with database.transaction() as session:
        failed = session.get_one(Job, first)
        failed.state, failed.fine_tuned_model = "failed", None
    child = submit(model=f"ft:tiny:acme::{first.removeprefix('ftjob-')}:ckpt-step-5")
    seen: list[bytes] = []

    def look(run: Path) -> None:
        seen.append((run / "parent_adapter" / "adapter_model.safetensors").read_bytes())

    monkeypatch.setattr("worker.launchers.run_directory._shrink", look)
    run_job(worker)
    assert read_job(database, child).state == "succeeded"
    assert seen == [expected_weights(num_steps=5)]


def test_only_the_end_of_a_run_s_log_is_kept(
    worker: Worker, database: Database, submit: Submit, tmp_path: Path
) -> None:
    first, second = submit(), submit()
    run_job(worker)
    folder = worker.settings.runs_dir / first / "1"
    assert sorted(path.name for path in folder.iterdir()) == ["engine.log", "owner.lock"]
    run_job(worker)
    assert [path.name for path in worker.settings.runs_dir.iterdir()] == [second]


def test_the_engine_sees_no_secret_of_the_worker(
    worker: Worker, submit: Submit, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., None]
) -> None:
    monkeypatch.setenv("GRPO_DATABASE_URL", "postgresql://hush-hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    job_id = submit({"*": {"step_seconds": 0.1}})
    thread = in_background(worker)
    wait_for(job_id, phase="training")
    (pid,) = wait_until(lambda: engine_pids(worker.settings))
    environment = Path(f"/proc/{pid}/environ").read_text()
    thread.join()
    assert "PATH=" in environment
    assert "hush-hush" not in environment
