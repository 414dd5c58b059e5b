"""A worker that may run graders without a sandbox: its claims, its engines, its jobs' warnings."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from grpo_engine.sandbox.unsafe import VARIABLE
from service.jobs.store.machines import PYTHON_GRADERS, SANDBOX, UNSAFE, UNSAFE_WARNING, Machine
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import JobEvent
from service.platform.tables.workers import WorkerHost
from service.web.auth import create_key
from tests.support.servers import wait_until
from tests.worker.attempt.test_prepare import prepared
from tests.worker.jobs import insert_dataset, insert_job, read_job
from worker import sweeper
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.launchers.warm_pool import WarmPool
from worker.sweeper import sweep_once


@pytest.fixture
def unsafe(worker: Worker) -> Worker:
    settings = worker.settings.model_copy(update={"unsafe_graders": "single-tenant"})
    offered = frozenset({SANDBOX, PYTHON_GRADERS, UNSAFE})
    return replace(worker, settings=settings, capabilities=offered)


def tenant(database: Database, name: str) -> None:
    with database.transaction() as session:
        create_key(session, name)


def test_a_job_run_without_a_sandbox_is_marked_in_warnings_and_events(
    unsafe: Worker, database: Database, storage: Storage
) -> None:
    tenant(database, "acme")
    dataset = insert_dataset(database, storage)
    job_id = insert_job(database, dataset, required_capabilities=SANDBOX)
    other = insert_job(database, dataset, required_capabilities="format:2")
    for each in (job_id, other):
        prepared(unsafe, each)
    assert read_job(database, job_id).warnings == [UNSAFE_WARNING]
    assert read_job(database, other).warnings == []
    with database.reading() as session:
        warnings = select(JobEvent.job_id, JobEvent.level).where(
            JobEvent.message == UNSAFE_WARNING["message"]
        )
        assert session.execute(warnings).all() == [(job_id, "warn")]


def test_an_unsafe_worker_claims_nothing_with_a_second_tenant(
    unsafe: Worker, database: Database, storage: Storage
) -> None:
    job_id = insert_job(database, insert_dataset(database, storage), required_capabilities=SANDBOX)
    for name in ("acme", "other"):
        tenant(database, name)
    assert run_job(unsafe) is False
    assert read_job(database, job_id).state == "queued"


def test_an_unsafe_worker_offers_nothing_with_a_second_tenant(
    unsafe: Worker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "this_machine", lambda _settings: Machine(unsafe.capabilities))

    def offered() -> set[str]:
        sweep_once(database, unsafe.wakeups, unsafe.settings)
        with database.reading() as session:
            names = session.scalars(select(WorkerHost.capabilities)).one().split()
        return {name for name in names if not name.startswith(("sink:", "format:"))}

    tenant(database, "acme")
    assert UNSAFE in offered()
    tenant(database, "other")
    assert offered() == set()


@pytest.mark.parametrize("is_warm", [True, False])
def test_only_engines_of_an_unsafe_worker_run_without_a_sandbox(
    worker: Worker, unsafe: Worker, tmp_path: Path, is_warm: bool
) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    for each, expected in ((worker, False), (unsafe, True)):
        settings = each.settings.model_copy(update={"engine_python": program})
        with closing(WarmPool(settings, keep_warm=is_warm)) as engines:
            engines.warm_up()
            engine = engines.start(tmp_path, {})
        folder = Path(f"/proc/{engine.pid}")
        wait_until(lambda folder=folder: (folder / "cmdline").read_bytes().startswith(b"sleep"))
        environment = (folder / "environ").read_bytes().split(b"\0")
        engine.close()
        assert (f"{VARIABLE}=1".encode() in environment) is expected
