"""The migrations build exactly the schema that the code describes, on both databases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, text

from service.platform.db import Database, make_engine
from service.platform.migrate import alembic_config, current_revision, head_revision
from service.platform.tables.core import Base
from service.settings import Settings
from tests.conftest import settings_for

PARTIAL = ("ix_jobs_claim", "ix_jobs_held", "ix_jobs_unfinished")


def test_the_migrated_schema_is_the_one_that_the_models_describe(database: Database) -> None:
    with database.engine.begin() as connection:
        command.check(alembic_config(connection))


def test_a_migrated_database_is_at_the_newest_revision(database: Database) -> None:
    assert current_revision(database.engine) == head_revision() == "2026_11_26_initial"


def test_upgrading_a_current_database_keeps_its_tables(database: Database) -> None:
    with database.engine.begin() as connection:
        command.upgrade(alembic_config(connection), "head")
    tables = set(inspect(database.engine).get_table_names())
    assert tables == {*Base.metadata.tables, "alembic_version"}


def test_downgrading_removes_every_table(database: Database) -> None:
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]


def test_the_partial_indexes_exist(database: Database) -> None:
    indexes = {index["name"]: index for index in inspect(database.engine).get_indexes("jobs")}
    dialect = database.engine.dialect.name
    conditions = {name: str(indexes[name]["dialect_options"][f"{dialect}_where"]) for name in PARTIAL}
    assert "queued" in conditions["ix_jobs_claim"]
    assert "pausing" in conditions["ix_jobs_held"]
    assert "paused" in conditions["ix_jobs_unfinished"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_statistics_of_the_jobs_table_stay_small(database: Database) -> None:
    """One column with the default target makes it ten times as long, so a new one needs its migration."""
    targets = (
        "SELECT DISTINCT attstattarget FROM pg_attribute "
        "WHERE attrelid = 'jobs'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    with database.reading() as session:
        assert session.scalars(text(targets)).all() == [10]


def test_an_empty_database_has_no_revision(tmp_path: Path) -> None:
    engine = make_engine(settings_for(tmp_path))
    assert current_revision(engine) is None
    engine.dispose()


def test_two_processes_may_upgrade_at_once(database: Database, settings: Settings) -> None:
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    script = (
        "from service import settings; from service.platform import migrate; "
        "migrate.upgrade(settings.Settings())"
    )
    environment = {
        **os.environ,
        "GRPO_HOME": str(settings.home),
        "GRPO_DATABASE_URL": settings.sqlalchemy_url,
    }
    started = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    assert [process.wait(120) for process in started] == [0, 0]
    assert current_revision(database.engine) == head_revision()
