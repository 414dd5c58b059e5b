"""Alive without anything, ready with its database, degraded without its broker."""

import json
import shutil
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from service.app import create_app
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_postgresql
from tests.service.ops.database_users import limited_user
from tests.support.servers import Postgres, Redis

WELL = {
    "database": "ok",
    "broker": "none",
    "storage": "ok",
    "disk": "ok",
    "models": "none",
    "helpers": "none",
}


def ready(client: TestClient) -> tuple[int, str, dict[str, str]]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json()["status"], answer.json()["checks"]


@pytest.fixture
def brokered(settings: Settings, redis_server: Redis) -> Iterator[TestClient]:
    """The application with a broker."""
    with_broker = settings.model_copy(update={"broker_url": SecretStr(redis_server.url)})
    with TestClient(create_app(with_broker)) as client:
        yield client


def test_alive_needs_no_key(anonymous: TestClient) -> None:
    assert anonymous.get("/livez").json() == {"status": "alive"}


def test_embedded_mode_is_ready_without_broker(anonymous: TestClient) -> None:
    assert ready(anonymous) == (200, "ready", WELL)


def test_it_is_ready_with_a_broker_that_answers(brokered: TestClient) -> None:
    assert ready(brokered) == (200, "ready", WELL | {"broker": "ok"})


def test_without_its_broker_it_is_degraded_and_still_serves(
    brokered: TestClient, redis_server: Redis
) -> None:
    redis_server.stop()
    try:
        assert ready(brokered) == (200, "degraded", WELL | {"broker": "no answer"})
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


def test_a_missing_catalogue_degrades_it_and_requests_for_models_are_answered(
    settings: Settings, api_key: str
) -> None:
    without = settings.model_copy(update={"models": settings.home / "missing" / "catalogue.json"})
    job = {"model": "tiny", "training_file": "file-none"}
    with TestClient(create_app(without), headers={"Authorization": f"Bearer {api_key}"}) as client:
        problem = {"models": "the catalogue cannot be read: run `grpo doctor`"}
        assert ready(client) == (200, "degraded", WELL | problem)
        answers = [client.get("/v1/models"), client.post("/v1/fine_tuning/jobs", json=job)]
    assert [answer.status_code for answer in answers] == [503, 503]
    message = "The model catalogue cannot be read or written. Its operator must repair it."
    assert [answer.json()["error"]["message"] for answer in answers] == [message] * 2
    without.models.parent.mkdir()
    without.models.write_text(json.dumps({"tiny": {"path": "/models/tiny"}}))
    with TestClient(create_app(without)) as client:
        assert ready(client) == (200, "ready", WELL | {"models": "ok"})


def test_on_another_schema_it_is_not_ready(anonymous: TestClient, database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'older'")
    status, state, checks = ready(anonymous)
    assert (status, state) == (503, "unready")
    assert checks["database"].startswith("schema is older, 2026_")
    assert checks["database"].endswith("another version upgraded it")


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


@on_postgresql
@pytest.mark.parametrize(
    ("grants", "found"),
    [
        ([], "refuses to be read: permission denied for table alembic_version"),
        (["SELECT ON ALL TABLES IN SCHEMA public"], "its user lacks DELETE on api_keys, DELETE on "),
        (
            ["SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public"],
            "its user lacks USAGE on public.audit_id",
        ),
    ],
)
def test_with_too_few_rights_in_its_database_it_is_not_ready(
    settings: Settings, database: Database, grants: list[str], found: str
) -> None:
    with limited_user(database, settings, *grants) as limited, TestClient(create_app(limited)) as client:
        status, state, checks = ready(client)
        metrics = client.get("/metrics")
    assert (status, state) == (503, "unready")
    assert checks["database"].startswith(found)
    assert metrics.status_code == 200


def test_without_its_storage_it_is_degraded_and_still_serves(
    anonymous: TestClient, settings: Settings
) -> None:
    shutil.rmtree(settings.home / "artifacts")
    assert ready(anonymous) == (200, "degraded", WELL | {"storage": "no answer"})


def test_on_a_full_disk_it_is_not_ready(settings: Settings) -> None:
    greedy = settings.model_copy(update={"min_free_disk_bytes": 1 << 60})
    with TestClient(create_app(greedy)) as client:
        status, state, checks = ready(client)
    assert (status, state, checks["database"]) == (503, "unready", "ok")
    assert checks["disk"].endswith(f"{1 << 40} MiB are required")
