"""A worker downloads a base model of the hub before the engine starts; real processes and a local hub."""

import pytest
from sqlalchemy import select

from service.hub.child_process import find_model
from service.hub.models import folder_of
from service.jobs.results.provenance import facts_of
from service.platform.catalog import Catalog
from service.platform.db import Database
from service.platform.tables.core import Job, JobEvent
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.support.model_hub.fixture import PRESENT, STALL_AFTER, WEIGHTS, hub
from tests.support.model_hub.server import REVISION, ModelHub
from tests.support.servers import wait_until
from tests.worker.attempt.test_runner import Submit
from tests.worker.jobs import cancel, read_job
from tests.worker.outcomes import in_background
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # nothing here depends on the database

__all__ = ["hub"]


@pytest.fixture
def job_id(hub: ModelHub, settings: Settings, submit: Submit) -> str:
    """A queued job on the hub's model, as a request adds it."""
    Catalog(settings).add_from_hub(hub.id, find_model(settings, hub.id))
    return submit(model=hub.id)


def phases(database: Database, job_id: str) -> list[str]:
    with database.reading() as session:
        events = session.scalars(
            select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.sequence)
        ).all()
    return [event.data["phase"] for event in events if "phase" in event.data]


def test_the_weights_are_downloaded_with_progress_and_the_engine_gets_their_folder(
    worker: Worker, database: Database, settings: Settings, hub: ModelHub, job_id: str
) -> None:
    hub.stall_after = STALL_AFTER
    running = in_background(worker)
    percent = 5 * (100 * PRESENT // len(WEIGHTS) // 5)
    wait_until(lambda: read_job(database, job_id).phase == f"downloading model {percent} %", 120)
    hub.released.set()
    running.join()
    assert read_job(database, job_id).state == "succeeded"
    folder = folder_of(settings.home, hub.id, REVISION)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    found = phases(database, job_id)
    assert f"downloading model {percent} %" in found
    assert found.index(f"downloading model {percent} %") < found.index("starting")
    with database.reading() as session:
        messages = session.scalars(select(JobEvent.message).where(JobEvent.job_id == job_id)).all()
    assert f"Downloading org/small (0.0 GB) at revision {REVISION}." in messages


def test_a_cancelled_download_ends_the_job_and_a_later_one_continues(
    worker: Worker, database: Database, settings: Settings, hub: ModelHub, job_id: str, submit: Submit
) -> None:
    hub.stall_after = STALL_AFTER
    running = in_background(worker)
    part = folder_of(settings.home, hub.id, REVISION) / "model.safetensors.part"
    wait_until(lambda: part.is_file() and part.stat().st_size == PRESENT, 120)
    cancel(database, job_id)
    running.join()
    assert read_job(database, job_id).state == "cancelled"
    hub.stall_after = None
    second = submit(model=hub.id)
    run_job(worker)
    assert read_job(database, second).state == "succeeded"
    assert hub.fetched[-1] == ("model.safetensors", PRESENT)


def test_a_model_that_became_gated_fails_the_job_with_what_to_do(
    worker: Worker, database: Database, hub: ModelHub, job_id: str
) -> None:
    hub.token = "hf_needed"
    run_job(worker)
    job = read_job(database, job_id)
    assert job.state == "failed"
    assert job.failure is not None
    assert job.failure["code"] == "model_gated"
    assert "Accept its terms at" in job.failure["hint"]


def test_without_a_network_the_job_is_tried_again(
    worker: Worker, database: Database, hub: ModelHub, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    run_job(worker)
    job = read_job(database, job_id)
    assert job.state == "queued"
    assert job.failures == 1


def test_the_result_names_the_hub_model_and_its_revision(
    worker: Worker, settings: Settings, hub: ModelHub, job_id: str
) -> None:
    run_job(worker)
    with worker.database.reading() as session:
        base = facts_of(session, session.get_one(Job, job_id), worker.catalog).base
    assert (base.name, base.revision, base.place) == (hub.id, REVISION, "hub")
