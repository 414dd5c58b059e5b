"""Creating jobs: what is stored and answered, once only, within the tenant's limit."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.store import queue
from service.platform.db import Database, lock_tenant
from service.platform.tables.core import AuditEntry, IdempotencyKey, Job, JobEvent
from service.settings import Settings
from tests.conftest import on_postgresql
from tests.service.job_samples import (
    add_artifact,
    add_job,
    create,
    expanded,
    jsonl,
    num_jobs,
    reinforcement,
    report_machine,
    request,
    row,
    upload,
)
from tests.support.servers import wait_until

pytestmark = pytest.mark.usefixtures("model")

JOBS = "/v1/fine_tuning/jobs"


def post(client: TestClient, body: dict[str, Any], **headers: str) -> Any:
    return client.post(
        JOBS, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


def test_a_warning_that_quotes_a_nul_is_stored_with_its_replacement(client: TestClient) -> None:
    source = (
        "def grade(sample, item):\n"
        "    if len(sample['output_text']) > 9: raise ValueError('a\\0b\\ud800')\n"
        "    return len(sample['output_text'])"
    )
    job = create(client, upload(client), method=reinforcement({"type": "python", "source": source}))
    (warning,) = [each for each in job["warnings"] if each["code"] == "grader_raises"]
    assert "ValueError: a\ufffdb?" in warning["message"]


def test_a_created_job_is_queued_with_its_whole_configuration(client: TestClient, database: Database) -> None:
    report_machine(database)
    file_id = upload(client, jsonl(*(row(f"What is {n}+0?", str(n)) for n in range(20))))
    job = create(client, file_id, suffix="demo", seed=7, metadata={"team": "a"})
    assert job["id"].startswith("ftjob-")
    assert (job["object"], job["status"], job["phase"]) == ("fine_tuning.job", "queued", "queued")
    assert (job["model"], job["training_file"], job["validation_file"]) == ("tiny", file_id, None)
    assert (job["seed"], job["suffix"], job["metadata"]) == (7, "demo", {"team": "a"})
    assert (job["organization_id"], job["result_files"], job["error"]) == ("tenant-a", [], None)
    assert job["hyperparameters"] == {}
    assert job["queue"] == {"position": 1, "reason": "waiting for a worker"}
    assert job["progress"] == {"step": 0, "total_steps": 3, "seconds_remaining": None}
    assert job["eval"] == {"baseline": None, "best": None, "last": None}
    assert (job["artifacts"], job["warnings"], job["attempt"], job["failure"]) == ([], [], 0, None)
    hyperparameters = job["method"]["reinforcement"]["hyperparameters"]
    assert (hyperparameters["group_size"], hyperparameters["beta"]) == (8, 0.04)
    assert client.get(f"{JOBS}/{job['id']}").json() == job


def test_a_suffix_is_any_text_and_becomes_part_of_the_model_s_name(client: TestClient) -> None:
    job = create(client, upload(client), suffix='Grüße: "a/b" 2')
    assert job["suffix"] == 'Grüße: "a/b" 2'
    name = names.fine_tuned_model(job["model"], "tenant-a", job["suffix"], job["id"])
    assert name == f"ft:tiny:tenant-a:Gr--e---a-b--2:{job['id'].removeprefix('ftjob-')}"


def test_a_seed_that_is_not_given_is_random_and_visible(client: TestClient) -> None:
    file_id = upload(client)
    seeds = {create(client, file_id)["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_job_history_key_and_audit_are_one_transaction(client: TestClient, database: Database) -> None:
    job_id = create(client, upload(client))["id"]
    with database.reading() as session:
        events = session.scalars(select(JobEvent).order_by(JobEvent.sequence)).all()
        key = session.scalars(select(IdempotencyKey)).one()
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.object_id == job_id)).all()
        job = session.scalars(select(Job)).one()
    assert [(event.sequence, event.type) for event in events] == [(1, "message"), (2, "status")]
    assert events[1].data == {"status": "queued", "state": "queued", "phase": "queued"}
    assert (key.job_id, key.key, job.event_sequence) == (job_id, f"auto:{job_id}", 2)
    assert list(actions) == ["job.create"]


def test_a_job_may_start_from_an_earlier_jobs_model(
    client: TestClient, settings: Settings, database: Database
) -> None:
    name, file_id = "ft:tiny:tenant-a::abc", upload(client)
    parent = add_job(database, JobState.SUCCEEDED, fine_tuned_model=name)
    without_weights = post(client, request(file_id, model=name))
    assert without_weights.json()["error"]["code"] == "model_not_found"
    add_artifact(settings, database, parent, "adapter", b"weights")
    assert create(client, file_id, model=name)["model"] == name


def child_of_rank_4(
    client: TestClient, settings: Settings, database: Database, **hyperparameters: Any
) -> Any:
    """POST of a job on a model whose adapter has rank 4."""
    name = "ft:tiny:tenant-a::abc"
    lora = {"rank": 4, "alpha": 8}
    parent = add_job(database, JobState.SUCCEEDED, fine_tuned_model=name, method=expanded(lora=lora))
    add_artifact(settings, database, parent, "adapter", b"weights")
    return post(client, request(upload(client), model=name, method=reinforcement(**hyperparameters)))


def lora_of(answer: Any) -> Any:
    return answer.json()["method"]["reinforcement"]["hyperparameters"]["lora"]


def test_a_job_on_a_catalogue_model_shows_its_future_adapter(client: TestClient) -> None:
    answer = post(client, request(upload(client)))
    assert lora_of(answer) == {"rank": 16, "alpha": 32.0, "dropout": 0.0, "target_modules": "all-linear"}


def test_a_job_inherits_the_shape_of_the_adapter_that_it_continues(
    client: TestClient, settings: Settings, database: Database
) -> None:
    inherited = lora_of(child_of_rank_4(client, settings, database))
    assert (inherited["rank"], inherited["alpha"]) == (4, 8.0)


def test_another_rank_than_the_inherited_one_is_refused(
    client: TestClient, settings: Settings, database: Database
) -> None:
    answer = child_of_rank_4(client, settings, database, lora={"rank": 8})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "method.reinforcement.hyperparameters.lora.rank"
    assert "is 8, but the model's adapter has rank 4" in answer.json()["error"]["message"]


def test_the_same_key_and_body_give_the_same_job(client: TestClient, database: Database) -> None:
    body = request(upload(client))
    first, second = post(client, body, Idempotency_Key="k1"), post(client, body, Idempotency_Key="k1")
    assert first.json()["id"] == second.json()["id"]
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert num_jobs(database) == 1


def test_the_same_key_with_another_body_is_refused(client: TestClient, database: Database) -> None:
    body = request(upload(client))
    post(client, body, Idempotency_Key="k1")
    answer = post(client, {**body, "seed": 5}, Idempotency_Key="k1")
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "idempotency_key_reuse"
    assert answer.headers["x-should-retry"] == "false"
    assert num_jobs(database) == 1


def test_a_key_is_its_tenants_own(client: TestClient, other_client: TestClient, database: Database) -> None:
    mine = post(client, request(upload(client)), Idempotency_Key="k1").json()
    theirs = post(other_client, request(upload(other_client)), Idempotency_Key="k1").json()
    assert mine["id"] != theirs["id"]
    assert num_jobs(database) == 2


def test_forty_posts_at_once_with_one_key_make_one_job(
    settings: Settings, client: TestClient, api_key: str, database: Database
) -> None:
    body = request(upload(client))
    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(lambda _: post(client, body, Idempotency_Key="k1"), range(40)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert num_jobs(database) == 1
    assert sum("Idempotency-Replayed" in answer.headers for answer in answers) == 39


def test_a_retry_without_key_gets_the_job_it_made(client: TestClient, database: Database) -> None:
    body = request(upload(client))
    first = post(client, body)
    again = post(client, body, x_stainless_retry_count="1")
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["x-deduplicated"] == "true"
    assert post(client, {**body, "seed": 5}, x_stainless_retry_count="1").json()["id"] != first.json()["id"]
    assert post(client, body, x_stainless_retry_count="0").json()["id"] != first.json()["id"]
    assert num_jobs(database) == 3


def num_waiting_for_locks(database: Database) -> int:
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    query = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {here}"
    with database.reading() as session:
        return int(session.execute(text(query)).scalar_one())


@on_postgresql
def test_a_retry_waits_for_the_job_that_is_still_being_made(client: TestClient, database: Database) -> None:
    body = request(upload(client))
    with ThreadPoolExecutor(2) as threads, database.transaction() as session:
        lock_tenant(session, "tenant-a")
        first = threads.submit(post, client, body)
        wait_until(lambda: num_waiting_for_locks(database) == 1)
        again = threads.submit(post, client, body, x_stainless_retry_count="1")
        wait_until(lambda: num_waiting_for_locks(database) == 2)
        session.rollback()
    assert again.result().json()["id"] == first.result().json()["id"]
    assert num_jobs(database) == 1


def test_an_old_request_is_not_a_retry(client: TestClient, database: Database) -> None:
    body = request(upload(client))
    first = post(client, body)
    with database.transaction() as session:
        session.scalars(select(IdempotencyKey)).one().created_at -= 601
    assert post(client, body, x_stainless_retry_count="1").json()["id"] != first.json()["id"]


def test_positions_follow_the_order_of_claims(client: TestClient, database: Database) -> None:
    report_machine(database)
    file_id = upload(client)
    first, second = create(client, file_id), create(client, file_id)
    urgent = add_job(database, JobState.QUEUED, tenant="tenant-b", priority=5)
    assert urgent
    jobs = {job["id"]: job["queue"] for job in client.get(JOBS).json()["data"]}
    assert jobs[first["id"]] == {"position": 2, "reason": "1 ahead of it in the queue"}
    assert jobs[second["id"]] == {"position": 3, "reason": "2 ahead of it in the queue"}


def test_a_job_that_waits_for_others_of_its_tenant_shows_the_limit(
    client: TestClient, other_client: TestClient, app: FastAPI, settings: Settings, database: Database
) -> None:
    report_machine(database)
    app.state.settings = settings.model_copy(update={"max_running_jobs": 2})
    held = [add_job(database, state, fence=1) for state in (JobState.RUNNING, JobState.PAUSING)]
    file_id = upload(client)
    waiting = create(client, file_id)
    reason = "Tenant limit reached: 2 running jobs"
    assert waiting["queue"] == {"position": 1, "reason": reason}
    assert client.get(JOBS).json()["data"][0]["queue"]["reason"] == reason
    assert create(other_client, upload(other_client))["queue"]["reason"] == "1 ahead of it in the queue"
    with database.transaction() as session:
        assert queue.finish(session, held[0], 1, JobState.SUCCEEDED)
    assert client.get(f"{JOBS}/{waiting['id']}").json()["queue"]["reason"] == "waiting for a worker"
