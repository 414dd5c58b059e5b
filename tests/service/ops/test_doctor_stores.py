"""`grpo doctor` on the database, the broker, the storage and the disk."""

import uuid
from pathlib import Path

import pytest
from sqlalchemy import update

from service.cli.operate.settings import migrate_database
from service.cli.terminal.errors import CommandError
from service.jobs.store.machines import Machine, announce
from service.ops.doctor import stores
from service.ops.doctor.findings import Level
from service.platform.db import Database
from service.platform.tables.workers import WorkerHost
from service.settings import Settings
from tests.conftest import on_postgresql, on_sqlite, settings_for
from tests.service.ops.database_users import limited_user
from tests.service.ops.findings import bad, only
from tests.support.servers import Postgres, Redis
from tests.worker.jobs import insert_job

NO_SERVER = "postgresql://grpo:hidden@127.0.0.1:1/none"


def test_an_unreachable_database_is_a_failure(tmp_path: Path) -> None:
    found = only(stores.database(settings_for(tmp_path, NO_SERVER)))
    assert (found.level, found.check) == (Level.FAILURE, "database")
    assert "hidden" not in found.found
    assert found.advice.startswith("Start the database that GRPO_DATABASE_URL names")


def test_a_home_without_a_usable_database_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "grpo.db").mkdir()
    found = only(stores.database(settings_for(tmp_path)))
    assert (found.check, found.found) == ("database", "unable to open database file")
    assert found.advice.startswith("GRPO_HOME must be a folder that this user can write to")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("ENCODING 'SQL_ASCII' TEMPLATE template0", "its encoding is SQL_ASCII: create a database with"),
        ("ENCODING 'LATIN1' TEMPLATE template0", "its encoding is LATIN1: create a database with"),
        ("TEMPLATE template0", "session is read-only"),
    ],
)
def test_a_postgresql_that_cannot_store_jobs_is_a_failure(
    tmp_path: Path, postgres_server: Postgres, options: str, reason: str
) -> None:
    name = f"odd_{uuid.uuid4().hex}"
    postgres_server.execute(f"CREATE DATABASE {name} {options}")
    if "read-only" in reason:
        postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    settings = settings_for(tmp_path, postgres_server.url_of(name))
    assert reason in only(stores.database(settings)).found
    with pytest.raises(CommandError, match=reason):
        migrate_database(settings)


def test_another_schema_is_a_failure(settings: Settings, database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'older'")
    found = bad(stores.database(settings))[-1]
    assert (found.level, found.check) == (Level.FAILURE, "schema")
    assert "grpo migrate" in found.advice


@on_postgresql
def test_a_user_of_the_database_without_rights_is_a_failure(settings: Settings, database: Database) -> None:
    reading = "SELECT ON ALL TABLES IN SCHEMA public"
    writing = "INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public"
    with limited_user(database, settings, reading) as limited:
        found = bad(stores.database(limited))[-1]
    assert (found.level, found.check) == (Level.FAILURE, "schema")
    assert found.found.startswith("its user lacks DELETE on api_keys")
    assert "grant it to the user" in found.advice
    with limited_user(database, settings, reading, writing, "USAGE ON audit_id_seq") as limited:
        assert [each.check for each in bad(stores.database(limited))] == ["durability"]


@on_postgresql
def test_a_postgresql_that_may_lose_commits_is_a_failure(settings: Settings, database: Database) -> None:
    """The tests' own server is one: it does without fsync."""
    assert only(stores.database(settings)).found == "synchronous_commit is on, fsync is off"
    with database.engine.connect() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
        connection.exec_driver_sql("COMMIT")
    assert only(stores.database(settings)).advice.startswith("ALTER SYSTEM SET synchronous_commit = on")


@on_sqlite
def test_waiting_jobs_without_a_worker_are_a_warning(settings: Settings, database: Database) -> None:
    insert_job(database, pool="large")
    found = only(stores.database(settings))
    assert (found.level, found.check) == (Level.WARNING, "pool large")
    assert "grpo worker" in found.advice


@on_sqlite
def test_an_old_worker_is_named_until_it_is_upgraded(settings: Settings, database: Database) -> None:
    with database.transaction() as session:
        announce(session, "old-host", "default", Machine(frozenset()))
        session.execute(update(WorkerHost).values(capabilities="sandbox"))  # as the version before it did
    found = only(stores.database(settings))
    assert (found.level, found.check) == (Level.WARNING, "pool default")
    assert found.found == "old-host reads job format 1; this version writes up to 2"
    with database.transaction() as session:
        announce(session, "old-host", "default", Machine(frozenset()))
    assert not [one for one in stores.database(settings) if one.level is Level.WARNING]


def test_a_broker_that_is_unreachable_or_evicts_is_a_failure(tmp_path: Path, redis_server: Redis) -> None:
    away = settings_for(tmp_path, broker_url="redis://:hidden@127.0.0.1:1/0")
    assert only(stores.broker(away)).found == "no answer"
    connection = redis_server.client()
    connection.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = only(stores.broker(settings_for(tmp_path, broker_url=redis_server.url)))
    finally:
        connection.config_set("maxmemory-policy", "noeviction")
        connection.close()
    assert (found.level, found.found) == (
        Level.FAILURE,
        "evicts messages: maxmemory-policy is allkeys-lru",
    )
    assert bad(stores.broker(settings_for(tmp_path, broker_url=redis_server.url))) == []


def test_a_broker_that_accepts_no_wake_ups_is_a_failure(tmp_path: Path) -> None:
    with Redis() as server:
        settings = settings_for(tmp_path, broker_url=server.url)
        with server.read_only():
            read_only = only(stores.broker(settings))
        connection = server.client()
        connection.config_set("maxmemory", "1")
        full = only(stores.broker(settings))
        connection.close()
    assert (read_only.level, read_only.found) == (Level.FAILURE, "is read-only: it is a replica")
    assert (full.level, full.found) == (Level.FAILURE, "is full: maxmemory is reached")


def test_a_broker_that_refuses_the_login_is_a_failure(tmp_path: Path, redis_server: Redis) -> None:
    beyond = f"{redis_server.url.rpartition('/')[0]}/99"
    connection = redis_server.client()
    found = [only(stores.broker(settings_for(tmp_path, broker_url=beyond)))]
    connection.config_set("requirepass", "secret")
    try:
        found.append(only(stores.broker(settings_for(tmp_path, broker_url=redis_server.url))))
    finally:
        connection.config_set("requirepass", "")
        connection.close()
    assert {each.found for each in found} == {"refuses the user, password or database number"}
    assert all("GRPO_BROKER_URL" in each.advice for each in found)


@pytest.mark.parametrize("url", ["file:///proc/nowhere", "file://relative", "nonsense://x"])
def test_a_storage_that_cannot_be_written_to_is_a_failure(tmp_path: Path, url: str) -> None:
    assert only(stores.storage(settings_for(tmp_path, storage_url=url))).level is Level.FAILURE


def test_the_probe_of_the_storage_leaves_nothing(tmp_path: Path) -> None:
    assert bad(stores.storage(settings_for(tmp_path))) == []
    assert [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()] == []


def test_a_full_disk_is_a_failure(tmp_path: Path) -> None:
    found = only(stores.disk(settings_for(tmp_path, min_free_disk_bytes=1 << 60)))
    assert (found.level, found.check) == (Level.FAILURE, "disk")


def test_the_storage_s_own_disk_is_checked(tmp_path: Path) -> None:
    own = settings_for(tmp_path, storage_url="file:///dev/shm", min_free_disk_bytes=1 << 60)
    found = [(each.level, each.check) for each in stores.disk(own)]
    assert found == [(Level.FAILURE, "disk"), (Level.FAILURE, "disk of storage")]
