"""Prometheus metrics: counts of the database and of this process, without data of tenants."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from service.jobs.store import queue, queue_health, sweeping
from service.jobs.store.machines import SANDBOX, Machine, announce
from service.jobs.store.queue_health import JOB_COUNTS
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.workers import WorkerHost
from tests.worker.jobs import claim, claimed, insert_job


def scraped(client: TestClient) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names …) → value."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def add_machine(
    database: Database,
    *capabilities: str,
    host: str = "host",
    pool: str = "default",
    silent_seconds: float = 0,
) -> None:
    with database.transaction() as session:
        announce(session, host, pool, Machine(frozenset(capabilities)))
        session.execute(update(WorkerHost).values(seen_at=WorkerHost.seen_at - silent_seconds))


def warnings(client: TestClient, pool: str = "default") -> list[str]:
    found = scraped(client)
    return [name for name in queue_health.WARNINGS if found[("grpo_warning", pool, name)] == 1]


def test_jobs_are_counted_by_state_and_pool(anonymous: TestClient, database: Database) -> None:
    insert_job(database, created_at=1000.0)
    insert_job(database)
    insert_job(database, state="running", pool="large")
    found = scraped(anonymous)
    assert found[("grpo_jobs", "default", "queued")] == 2
    assert found[("grpo_jobs", "large", "running")] == 1
    assert found[("grpo_oldest_queued_seconds", "default")] > 1_700_000_000
    assert ("grpo_oldest_queued_seconds", "large") not in found
    assert found[("grpo_database_up",)] == 1
    assert found[("grpo_build_info", "0.1.0")] == 1


def test_ended_jobs_are_counted_by_result_and_failed_ones_by_code(
    anonymous: TestClient, database: Database
) -> None:
    insert_job(database, state="succeeded")
    for code in ("no_signal", "no_signal", "poisoned"):
        insert_job(database, state="failed", failure={"code": code})
    found = scraped(anonymous)
    assert found[("grpo_jobs_finished_total", "default", "succeeded")] == 1
    assert found[("grpo_jobs_finished_total", "default", "failed")] == 3
    assert found[("grpo_jobs_failed_total", "no_signal")] == 2
    assert found[("grpo_jobs_failed_total", "disk_full")] == 0
    insert_job(database, state="failed", failure={"code": "no_signal"})
    insert_job(database, state="failed")
    found = scraped(anonymous)
    assert found[("grpo_jobs_failed_total", "no_signal")] == 3
    assert found[("grpo_jobs_failed_total", "unknown")] == 1


def test_attempts_and_expired_leases_are_counted_and_never_go_back(
    anonymous: TestClient, database: Database
) -> None:
    job = claimed(database)
    with database.transaction() as session:
        queue.release(
            session, job.id, job.fence, counts_as_failure=False, backoff_seconds=0, reason="drained"
        )
    assert claim(database) is not None
    with database.transaction() as session:
        session.execute(update(Job).values(lease_expires_at=db_now() - 1))
    assert scraped(anonymous)[("grpo_leases_overdue", "default")] == 1
    with database.transaction() as session:
        assert len(sweeping.sweep(session, backoff_seconds=0, max_failures=3)) == 1
    found = scraped(anonymous)
    assert found[("grpo_attempts_total", "default")] == 2
    assert found[("grpo_leases_expired_total", "default")] == 1
    assert ("grpo_leases_overdue", "default") not in found
    with database.transaction() as session:
        queue.request(session, "acme", job.id, "cancel")
    assert scraped(anonymous)[("grpo_leases_expired_total", "default")] == 1


def test_machines_with_workers_are_seen(anonymous: TestClient, database: Database) -> None:
    add_machine(database)
    add_machine(database, pool="large", silent_seconds=200)
    found = scraped(anonymous)
    assert found[("grpo_worker_hosts", "default")] == 0  # both rows were set back
    assert found[("grpo_worker_seen_seconds", "large")] >= 200
    add_machine(database)
    assert scraped(anonymous)[("grpo_worker_hosts", "default")] == 1


def test_jobs_that_wait_without_any_worker_are_an_alarm(anonymous: TestClient, database: Database) -> None:
    insert_job(database)
    assert warnings(anonymous) == ["no_live_worker"]
    add_machine(database)
    assert warnings(anonymous) == []
    add_machine(database, silent_seconds=200)
    assert warnings(anonymous) == ["no_live_worker"]


def test_a_job_that_waits_beside_an_idle_machine_is_an_alarm(
    anonymous: TestClient, database: Database
) -> None:
    """A worker that answers its broker and consumes nothing."""
    insert_job(database, created_at=1000.0)
    add_machine(database)
    assert warnings(anonymous) == ["idle_worker"]
    insert_job(database, state="running")
    assert warnings(anonymous) == []


def test_a_machine_that_could_not_run_the_waiting_job_is_not_called_idle(
    anonymous: TestClient, database: Database
) -> None:
    insert_job(database, created_at=1000.0, required_capabilities=SANDBOX)
    insert_job(database, state="running")
    add_machine(database, SANDBOX)
    add_machine(database, host="plain")
    assert warnings(anonymous) == []


def test_a_job_that_no_machine_can_run_is_an_alarm(anonymous: TestClient, database: Database) -> None:
    insert_job(database, required_capabilities=SANDBOX)
    insert_job(database, required_gpus=2)
    add_machine(database, SANDBOX)
    assert warnings(anonymous) == ["unrunnable_jobs"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_requests_are_counted_by_method_route_and_kind_of_status(client: TestClient) -> None:
    client.get("/v1/files/file-secret1")
    client.get("/v1/fine_tuning/jobs/ftjob-secret2/metrics")
    client.head("/v1/files")
    client.request("BREW", "/v1/files")
    client.get("/nowhere/secret3")
    found = scraped(client)
    name = "grpo_http_request_duration_seconds_count"
    assert found[(name, "GET", "/v1/files/{file_id}", "4xx")] == 1
    assert found[(name, "GET", "/v1/fine_tuning/jobs/{job_id}/metrics", "4xx")] == 1
    assert found[(name, "HEAD", "/v1/files", "2xx")] == 1
    assert found[(name, "other", "/v1/files", "4xx")] == 1
    assert found[(name, "GET", "other", "4xx")] == 1
    assert "secret" not in client.get("/metrics").text


def test_no_label_holds_a_tenant_a_job_or_a_host(anonymous: TestClient, database: Database) -> None:
    for state in ("queued", "running", "failed"):
        insert_job(database, state=state, tenant="acme-secret", suffix="suffix-secret")
    add_machine(database)
    names = {name for family in _families(anonymous) for sample in family.samples for name in sample.labels}
    assert names <= {
        "state",
        "pool",
        "result",
        "code",
        "warning",
        "version",
        "method",
        "route",
        "status",
        "le",
    }
    text = anonymous.get("/metrics").text
    assert [word for word in ("secret", "ftjob", 'host"') if word in text] == []


def _families(client: TestClient) -> Any:
    return list(text_string_to_metric_families(client.get("/metrics").text))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_jobs_are_counted_in_an_index_without_reading_them(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = connection.exec_driver_sql(f"EXPLAIN {JOB_COUNTS}").scalars().all()
    assert any("Index Only Scan using ix_jobs_counts" in line for line in plan), plan
