"""The commands of docs/operate/operations.md work, and its alerts name existing metrics."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.app import create_app
from service.platform.db import Database, connect
from service.platform.storage import open_storage
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import on_postgresql, on_sqlite, settings_for
from tests.support.servers import Postgres, find_program, wait_until
from tests.worker.jobs import insert_dataset, insert_job

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "operate" / "operations.md").read_text()
BLOCKS = {block.splitlines()[0]: block for block in re.findall(r"```sh\n# (.*?)```", GUIDE, re.DOTALL)}


def run_block(title: str, settings: Settings, backup: Path) -> None:
    """Run the guide's commands with this deployment's settings and the server's PostgreSQL programs."""
    (block,) = (block for name, block in BLOCKS.items() if name.startswith(title))
    path = [str(Path(sys.executable).parent), str(Path(find_program("pg_dump")).parent), os.environ["PATH"]]
    given = {
        "PATH": ":".join(path),
        "PYTHONPATH": str(ROOT),
        "BACKUP": str(backup),
        "GRPO_HOME": str(settings.home),
        "GRPO_STORAGE_URL": settings.storage_location,
    }
    if settings.database_url:
        given["GRPO_DATABASE_URL"] = settings.database_url.get_secret_value()
    script = "set -eu\n# " + block
    done = subprocess.run(["bash", "-c", script], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def fill(database: Database, settings: Settings) -> str:
    """Add a job with a file and an event. Returns its id."""
    file_id = insert_dataset(database, open_storage(settings.storage_location))
    return insert_job(database, file_id, state="running", fence=3, attempt=2, lease_expires_at=1.0)


def check(settings: Settings, job_id: str) -> None:
    """Check that all of it exists and the service becomes ready."""
    restored = connect(settings)
    with restored.reading() as session:
        job = session.get_one(Job, job_id)
        (key,) = session.scalars(text("SELECT storage_key FROM files"))
    restored.engine.dispose()
    assert (job.state, job.fence, job.attempt) == ("running", 3, 2)
    assert open_storage(settings.storage_location).get_bytes(key).startswith(b'{"messages"')
    with TestClient(create_app(settings)) as client:
        wait_until(lambda: client.get("/readyz").json()["status"] == "ready", 120)


@on_postgresql
def test_a_backup_of_running_production_can_be_restored_elsewhere(
    settings: Settings, database: Database, tmp_path: Path, postgres_server: Postgres
) -> None:
    job_id = fill(database, settings)
    run_block("backup, production", settings, tmp_path / "backup")
    postgres_server.execute("CREATE DATABASE restored")
    try:
        elsewhere = settings_for(tmp_path / "elsewhere", postgres_server.url_of("restored"))
        run_block("restore, production", elsewhere, tmp_path / "backup")
        check(elsewhere, job_id)
    finally:
        postgres_server.execute("DROP DATABASE restored WITH (FORCE)")


@on_postgresql
def test_a_second_backup_into_the_same_folder_has_the_newer_objects(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    storage = open_storage(settings.storage_location)
    for key in ("files/first", "files/second"):
        storage.put(key, b"content")
        run_block("backup, production", settings, tmp_path / "backup")
    copied = open_storage(f"file://{tmp_path / 'backup' / 'artifacts'}")
    assert sorted(key for key, *_ in copied.listed()) == ["files/first", "files/second"]


@on_sqlite
def test_a_backup_of_a_busy_embedded_service_can_be_restored_elsewhere(
    database: Database, tmp_path: Path
) -> None:
    here = settings_for(tmp_path / "home")
    job_id = fill(database, here)
    with database.transaction() as session:
        session.execute(text("UPDATE jobs SET state = 'failed'"))  # not committed yet
        run_block("backup, embedded", here, tmp_path / "backup")
        session.rollback()
    elsewhere = settings_for(tmp_path / "elsewhere")
    run_block("restore, embedded", elsewhere, tmp_path / "backup")
    check(elsewhere, job_id)


def test_all_commands_of_the_guide_are_tested() -> None:
    assert [title.partition(":")[0] for title in BLOCKS] == [
        *("backup, production", "restore, production"),
        *("backup, embedded", "restore, embedded"),
    ]
    assert GUIDE.count("```sh") == len(BLOCKS)


@pytest.fixture
def exposed(database: Database, settings: Settings) -> set[str]:
    """Names of all metrics that the service exposes."""
    with TestClient(create_app(settings)) as client:
        client.get("/livez")
        return set(re.findall(r"^# TYPE (\w+) ", client.get("/metrics").text, re.MULTILINE))


def alerts() -> list[dict[str, Any]]:
    (block,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    (group,) = yaml.safe_load(block)["groups"]
    return list(group["rules"])


@on_sqlite
def test_alerts_and_table_name_existing_metrics(exposed: set[str]) -> None:
    used = set(re.findall(r"\bgrpo_\w+", " ".join(rule["expr"] for rule in alerts())))
    bases = {re.sub(r"_(count|bucket|sum)$", "", name) for name in used}
    assert bases <= exposed
    assert len(alerts()) == 8
    rated = re.findall(r"(?:increase|rate)\((grpo_\w+)", " ".join(rule["expr"] for rule in alerts()))
    # counters of jobs become lower when a job is deleted, which Prometheus takes for a restart
    assert {name.split("_")[1] for name in rated} == {"http"}
    tabled = set(re.findall(r"`(grpo_[a-z_]+)", GUIDE)) - {"grpo_http_"}
    assert tabled == {name for name in exposed if not name.endswith("_created")}
