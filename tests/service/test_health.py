"""Alive without anything, ready with its database, degraded without its broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from service.app import create_app
from service.db import Database
from service.models import Job
from service.settings import Settings
from tests.servers import Postgres, Redis


def ready(client: TestClient) -> tuple[int, str, dict[str, str]]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json()["status"], answer.json()["checks"]


@pytest.fixture
def brokered(settings: Settings, redis_server: Redis) -> Iterator[TestClient]:
    """The application with a broker."""
    with_broker = settings.model_copy(update={"broker_url": SecretStr(redis_server.url)})
    with TestClient(create_app(with_broker)) as client:
        yield client


def add_job(database: Database, job_id: str, state: str, pool: str = "default", **more: Any) -> None:
    columns = {"tenant": "t", "model": "m", "training_file": "f", "seed": 1, "method": {}, **more}
    with database.transaction() as session:
        session.add(Job(id=job_id, state=state, pool=pool, **columns))


def test_alive_needs_no_key(anonymous: TestClient) -> None:
    assert anonymous.get("/livez").json() == {"status": "alive"}


def test_embedded_mode_is_ready_without_broker(anonymous: TestClient) -> None:
    assert ready(anonymous) == (200, "ready", {"database": "ok", "broker": "none"})


def test_it_is_ready_with_a_broker_that_answers(brokered: TestClient) -> None:
    assert ready(brokered) == (200, "ready", {"database": "ok", "broker": "ok"})


def test_without_its_broker_it_is_degraded_and_still_serves(
    brokered: TestClient, redis_server: Redis
) -> None:
    redis_server.stop()
    try:
        assert ready(brokered) == (200, "degraded", {"database": "ok", "broker": "no answer"})
    finally:
        redis_server.start()


def test_an_evicting_broker_is_degraded(brokered: TestClient, redis_server: Redis) -> None:
    connection = redis_server.client()
    connection.config_set("maxmemory-policy", "allkeys-lru")
    try:
        status, state, checks = ready(brokered)
    finally:
        connection.config_set("maxmemory-policy", "noeviction")
        connection.close()
    assert (status, state) == (200, "degraded")
    assert checks["broker"] == "evicts messages: maxmemory-policy is allkeys-lru"


def test_production_does_not_start_on_an_evicting_broker(settings: Settings, redis_server: Redis) -> None:
    broker = {"broker_url": SecretStr(redis_server.url), "mode": "production"}
    connection = redis_server.client()
    connection.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with (
            pytest.raises(RuntimeError, match="evicts messages: maxmemory-policy is allkeys-lru"),
            TestClient(create_app(settings.model_copy(update=broker))),
        ):
            raise AssertionError("it started")
    finally:
        connection.config_set("maxmemory-policy", "noeviction")
        connection.close()


def test_on_another_schema_it_is_not_ready(anonymous: TestClient, database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'older'")
    status, state, checks = ready(anonymous)
    assert (status, state) == (503, "unready")
    assert checks["database"].startswith("schema is older, 2026_")


def test_on_an_empty_database_it_is_not_ready(anonymous: TestClient, database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE alembic_version")
    assert ready(anonymous)[2]["database"].startswith("schema is None")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_without_its_database_it_is_alive_but_not_ready(
    anonymous: TestClient, postgres_server: Postgres
) -> None:
    postgres_server.stop()
    try:
        answer, alive = ready(anonymous), anonymous.get("/livez").status_code
        counted = anonymous.get("/metrics").text
    finally:
        postgres_server.start()
    assert (answer[0], answer[2]["database"], alive) == (503, "no answer", 200)
    assert "grpo_database_up 0.0" in counted
    assert ready(anonymous)[0] == 200


def test_metrics_count_jobs_by_state_and_pool(anonymous: TestClient, database: Database) -> None:
    add_job(database, "ftjob-1", "queued", created_at=1000.0)
    add_job(database, "ftjob-2", "queued")
    add_job(database, "ftjob-3", "running", pool="large")
    lines = anonymous.get("/metrics").text.splitlines()
    assert 'grpo_jobs{pool="default",state="queued"} 2.0' in lines
    assert 'grpo_jobs{pool="large",state="running"} 1.0' in lines
    (wait,) = [line for line in lines if line.startswith('grpo_oldest_queued_seconds{pool="default"}')]
    assert float(wait.split()[-1]) > 1_700_000_000
    assert not any("ftjob" in line for line in lines)


def test_metrics_are_prometheus_text(anonymous: TestClient) -> None:
    answer = anonymous.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'grpo_build{version="0.1.0"} 1.0' in answer.text.splitlines()
