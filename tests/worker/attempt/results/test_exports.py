"""An export through the queue with the real engine: a verified archive, attempts, and reasons to fail."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_engine.contract.manifest import sha256_of
from grpo_engine.files.fingerprint import fingerprint
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results.evidence import audit_job
from service.jobs.store import queue
from service.jobs.store.transitions import IS_EXPORT
from service.platform.archives import pack, unpack
from service.platform.db import Database
from service.platform.ids import new_id
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, File, Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.engine.run.export_samples import logits, make_adapter, make_base
from tests.support.servers import wait_until
from tests.worker.conftest import engine_pids
from tests.worker.jobs import insert_file, insert_job, read_job
from tests.worker.outcomes import in_background, run_until_idle
from worker.attempt import publish
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # one database: no test here depends on queries


@pytest.fixture
def settings(settings: Settings) -> Settings:
    (settings.models_dir / "tiny" / "config.json").unlink()
    make_base(settings.models_dir / "tiny")
    return settings.model_copy(update={"engine_module": "grpo_engine"})


@pytest.fixture
def base(settings: Settings) -> Path:
    return settings.models_dir / "tiny"


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    folder = make_adapter(base, tmp_path / "adapter")
    (folder / "manifest.json").write_text(json.dumps({"model": {"fingerprint": fingerprint(base)}}))
    return folder


@pytest.fixture
def export_id(database: Database, storage: Storage, adapter: Path) -> Iterator[str]:
    """A queued export of a finished job's adapter; at the test's end it is audited."""
    archive = adapter.with_suffix(".tar.gz")
    pack(adapter, archive)
    file_id = insert_file(database, storage, new_id("file"), archive.read_bytes(), "adapter.tar.gz")
    job_id = insert_job(database, state=JobState.SUCCEEDED.value, step=10)
    with database.transaction() as session:
        session.add(Artifact(id=file_id, job_id=job_id, kind="adapter", step=10, fence=1))
        job = session.get_one(Job, job_id)
        model = job.fine_tuned_model = names.model_of(job)
    about = {"job_id": job_id, "format": "merged", "step": 10, "sha256": sha256_of(archive)}
    export_id = insert_job(database, model=model, training_file="", export=about)
    yield export_id
    assert audit_job(database, storage, export_id) == []


def archive_of(database: Database, export_id: str) -> File:
    with database.reading() as session:
        (found,) = session.query(File).join(Artifact, Artifact.id == File.id).filter_by(job_id=export_id)
        return found


def test_an_archive_exported_after_an_engine_died_is_verified_and_loads_without_peft(
    worker: Worker, database: Database, storage: Storage, export_id: str, base: Path, adapter: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("GRPO_FAULT", "export.saved:kill")
    monkeypatch.setenv("GRPO_FAULT_MARKS", str(tmp_path))
    run_until_idle(worker, database)
    assert (tmp_path / "export.saved").exists()
    assert (read_job(database, export_id).state, read_job(database, export_id).attempt) == ("succeeded", 2)
    file = archive_of(database, export_id)
    storage.download(file.storage_key, tmp_path / "merged.tar")
    assert sha256_of(tmp_path / "merged.tar") == file.sha256
    assert (tmp_path / "merged.tar").stat().st_size == file.num_bytes
    folder = tmp_path / "merged"
    unpack(tmp_path / "merged.tar", folder)
    torch.testing.assert_close(logits(folder), logits(base, adapter), atol=1e-4, rtol=1e-4)
    assert "# A LoRA adapter merged into tiny" in (folder / "README.md").read_text()
    assert json.loads((folder / "manifest.json").read_text())["weights"] == "merged"


def test_a_changed_base_fails_the_export_with_the_reason(
    worker: Worker, database: Database, settings: Settings, export_id: str, base: Path
) -> None:
    tensors = {name: each * 1.01 for name, each in load_file(base / "model.safetensors").items()}
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    run_job(worker)
    row = read_job(database, export_id)
    assert (row.state, row.attempt) == ("failed", 1)
    assert row.failure is not None
    assert row.failure["code"] == "base_model_changed"
    assert not engine_pids(settings)


def test_deleted_weights_fail_the_export_with_the_reason(
    worker: Worker, database: Database, export_id: str
) -> None:
    with database.transaction() as session:
        for artifact in session.query(Artifact):
            session.delete(artifact)
    run_job(worker)
    row = read_job(database, export_id)
    assert row.failure is not None
    assert (row.state, row.failure["code"]) == ("failed", "model_not_found")


def test_a_cancelled_export_leaves_no_archive(
    worker: Worker, database: Database, export_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the fake engine, which hangs until it is killed."""
    changed = {"engine_module": "tests.support.fake_engine", "stop_grace_seconds": 0.3}
    object.__setattr__(worker, "settings", worker.settings.model_copy(update=changed))
    monkeypatch.setenv("GRPO_FAULT", "export.saved:hang")
    monkeypatch.setenv("GRPO_FAULT_MARKS", str(tmp_path))
    running = in_background(worker)
    wait_until(lambda: (tmp_path / "export.saved").exists(), 120, "the engine has merged")
    with database.transaction() as session:
        assert queue.request(session, "acme", export_id, "cancel") is None, "an export is not a job"
        queue.request(session, "acme", export_id, "cancel", of=IS_EXPORT)
    running.join()
    assert read_job(database, export_id).state == "cancelled"
    with database.reading() as session:
        assert session.query(Artifact).filter_by(job_id=export_id).count() == 0


def test_an_export_that_is_cancelled_while_it_is_stored_leaves_no_object(
    worker: Worker, database: Database, storage: Storage, export_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fake engine."""
    settings = worker.settings.model_copy(update={"engine_module": "tests.support.fake_engine"})
    object.__setattr__(worker, "settings", settings)
    stored: list[bool] = []

    def cancel(_point: str) -> None:
        stored.append(any("/exports/" in key for key, _, _ in storage.listed()))
        with database.transaction() as session:
            queue.request(session, "acme", export_id, "cancel", of=IS_EXPORT)

    monkeypatch.setattr(publish, "fault_point", cancel)
    run_job(worker)
    assert (stored, read_job(database, export_id).state) == ([True], "cancelled")
    assert [key for key, _, _ in storage.listed() if "/exports/" in key] == []
