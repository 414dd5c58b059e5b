"""Probes use the queue and the claims of jobs, but are never shown or counted as jobs."""

from collections.abc import Callable
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import func, select

from service.app import create_app
from service.jobs.model.states import JobState
from service.jobs.results.evidence import audit_job
from service.jobs.store import queue, queue_health, sweeping
from service.jobs.store.transitions import IS_PROBE
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, Checkpoint, File
from service.platform.tables.webhooks import WebhookDelivery
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import on_postgresql, on_sqlite
from tests.support.servers import wait_until
from tests.support.webhook_receiver import ALLOWED, register
from tests.worker.conftest import engine_pids
from tests.worker.jobs import claim, read_job
from tests.worker.outcomes import in_background, metric_steps, run_until_idle
from tests.worker.test_webhooks_jobs import NOWHERE, expire_lease
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

Submit = Callable[..., str]
PROBE = {"prompts": 3}


def read(settings: Settings, database: Database, path: str) -> dict[str, Any]:
    """The API's response to their tenant."""
    with database.transaction() as session:
        key = create_key(session, "acme")
    with TestClient(create_app(settings), headers={"authorization": f"Bearer {key}"}) as client:
        return dict(client.get(f"/v1/fine_tuning/{path}").json())


@on_postgresql
def test_a_probe_ends_with_a_result_and_its_groups(
    worker: Worker, database: Database, settings: Settings, submit: Submit
) -> None:
    probe_id = submit(probe=PROBE)
    assert run_job(worker) is True
    found = read(settings, database, f"probes/{probe_id}")
    assert (found["status"], found["progress"]["step"]) == ("succeeded", 3)
    assert (found["result"]["prompts"], found["result"]["completions"]) == (3, 6)
    assert found["result"]["pass_rate"] == 0.5
    assert found["result"]["tokens_per_second"] == 24
    assert [group["prompt"] for group in found["groups"]] == ["1 + 1"] * 3


@on_sqlite
def test_a_probe_leaves_no_weights_files_or_model(worker: Worker, database: Database, submit: Submit) -> None:
    probe_id = submit(probe=PROBE)
    run_job(worker)
    with database.reading() as session:
        made = [session.scalar(select(func.count()).select_from(table)) for table in (Artifact, Checkpoint)]
        files = session.scalar(select(func.count()).select_from(File))
    assert made == [0, 0]
    assert files == 1, "its dataset"
    assert read_job(database, probe_id).fine_tuned_model is None


def test_the_end_of_a_probe_sends_no_webhook_and_is_not_counted(
    worker: Worker, database: Database, settings: Settings, submit: Submit
) -> None:
    register(database, settings.model_copy(update={"allowed_hosts": ALLOWED}), NOWHERE)
    job_id = submit()
    submit(probe=PROBE)
    assert run_job(worker)
    assert run_job(worker)
    with database.reading() as session:
        assert session.scalars(select(WebhookDelivery.job_id)).all() == [job_id]
        counted = {each.state: each.num_jobs for each in queue_health.job_counts(session)}
    assert counted == {"succeeded": 1}


@on_postgresql
def test_a_probe_is_not_visible_as_a_job(
    worker: Worker, database: Database, settings: Settings, submit: Submit
) -> None:
    probe_id, job_id = submit(probe=PROBE), submit()
    assert [job["id"] for job in read(settings, database, "jobs")["data"]] == [job_id]
    for path in ("", "/events", "/rollouts", "/metrics"):
        assert read(settings, database, f"jobs/{probe_id}{path}")["error"]["code"] == "job_not_found"
    assert read(settings, database, f"probes/{job_id}")["error"]["code"] == "probe_not_found"
    run_job(worker)


@on_sqlite
def test_a_probe_cancelled_while_sampling_has_no_result(
    worker: Worker, database: Database, settings: Settings, submit: Submit
) -> None:
    probe_id = submit({"*": {"step_seconds": 0.05}}, probe={"prompts": 200})
    running = in_background(worker)
    wait_until(lambda: read_job(database, probe_id).step > 0, 120, "the probe samples")
    with database.transaction() as session:
        assert queue.request(session, "acme", probe_id, "cancel") is None, "a probe is not a job"
        queue.request(session, "acme", probe_id, "cancel", of=IS_PROBE)
    running.join()
    found = read(settings, database, f"probes/{probe_id}")
    assert (found["status"], found["result"], found["groups"]) == ("cancelled", None, [])
    assert not engine_pids(settings)


@on_postgresql
def test_a_probe_of_a_lost_worker_is_requeued(worker: Worker, database: Database, submit: Submit) -> None:
    probe_id = submit(probe=PROBE)
    assert claim(database, "lost") is not None
    expire_lease(database)
    with database.transaction() as session:
        (swept,) = sweeping.sweep(session, backoff_seconds=0, max_failures=3)
    assert (swept.id, swept.state) == (probe_id, JobState.QUEUED)
    assert run_job(worker) is True
    assert (read_job(database, probe_id).state, read_job(database, probe_id).attempt) == ("succeeded", 2)


@on_sqlite
def test_a_restarted_engine_repeats_no_published_step(
    worker: Worker, database: Database, submit: Submit
) -> None:
    probe_id = submit({"1": {"die_at": 2}}, probe=PROBE)
    run_until_idle(worker, database)
    assert (read_job(database, probe_id).state, read_job(database, probe_id).attempt) == ("succeeded", 2)
    assert metric_steps(database, probe_id) == [1, 2, 3]


@on_sqlite
def test_the_audit_finds_a_probe_that_left_results(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    probe_id = submit(probe=PROBE)
    run_job(worker)
    with database.transaction() as session:
        session.add(Artifact(id="file-odd", job_id=probe_id, kind="adapter", step=1, fence=1))
        (dataset,) = session.scalars(select(File))
        session.add(
            File(
                id="file-odd",
                tenant="acme",
                filename="odd",
                purpose="fine-tune-results",
                num_bytes=dataset.num_bytes,
                sha256=dataset.sha256,
                storage_key=dataset.storage_key,
            )
        )
    found = audit_job(database, storage, probe_id)
    assert [each.rule for each in found] == ["a success has exactly one result"]
    with database.transaction() as session:
        session.delete(session.get_one(Artifact, "file-odd"))
