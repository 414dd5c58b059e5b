"""Fixtures every test folder shares: real servers, and each database test on SQLite and PostgreSQL."""

import gc
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from service.jobs.store import wakeups
from service.ops import bounded_check
from service.platform import logs
from service.platform.db import Database, connect
from service.platform.migrate import upgrade
from service.settings import Settings
from tests.database_pool import DatabasePool
from tests.support.forking import client as forking
from tests.support.moto import Moto
from tests.support.s3 import Bucket, new_bucket
from tests.support.servers import Postgres, Redis

# `make test` tries the same examples each time; `make fuzz` (--hypothesis-profile random) searches for others
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None, max_examples=30)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None)
hypothesis.settings.load_profile("same")
gc.disable()  # until all tests are imported


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is loaded by now stays: no collection needs to walk through torch and thousands of tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Use only the marked database; the mark of a file has no effect on tests without one."""
    mark = metafunc.definition.get_closest_marker("database")
    if mark and "database_url" in metafunc.fixturenames:
        chosen = pytest.mark.parametrize("database_url", mark.args, indirect=True)
        metafunc.definition.add_marker(chosen)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork pytest-xdist's processes from one that has imported the tests."""
    python = forking.tests_python(config.invocation_params.args)
    for spec in specs:
        spec.python = str(python)


class GivenSettings(Settings):
    """Settings that do not read the environment, which takes 2 ms."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **_others: object
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def settings_for(home: Path, database_url: str | None = None, **more: object) -> Settings:
    """Settings with what is given and defaults for the rest."""
    return GivenSettings.model_validate({"home": home, "database_url": database_url, **more})


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """No `GRPO_…`, no `AWS_…`, no proxy and no pytest variable of this machine reaches a test."""
    unwanted = re.compile("GRPO_|AWS_|PYTEST_ADDOPTS|(?i:.*_proxy$)")
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(unwanted.match, [*os.environ]):
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_checks() -> Iterator[None]:
    """In this process, only checks that hang are reported as such, but not a busy machine's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_check, "TIMEOUT_SECONDS", 60.0)
        patch.setattr(wakeups, "CHECK_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_lines_between_tests(pytestconfig: pytest.Config) -> Iterator[None]:
    """Drop what servers in this process log while pytest captures no output because it shows a result."""
    write = logs._Lines.write

    def write_captured(lines: logs._Lines, text: str) -> None:
        if sys.stderr is not sys.__stderr__ or pytestconfig.option.capture == "no":
            write(lines, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs._Lines, "write", write_captured)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One PostgreSQL for all tests; each test has its own database in it."""
    with Postgres() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL that this test may stop or change."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """One Redis for all tests; a test that stops it starts it again."""
    with Redis() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Moto]:
    """One S3-compatible store for all tests; each test has its own bucket in it."""
    with Moto() as server:
        yield server


@pytest.fixture
def bucket(moto_server: Moto) -> Iterator[Bucket]:
    """An empty bucket behind a proxy."""
    with new_bucket(moto_server) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a migrated database that others are copied from."""
    name = "grpo_template"
    postgres_server.execute(f"CREATE DATABASE {name}")
    upgrade(settings_for(tmp_path_factory.mktemp("template"), postgres_server.url_of(name)))
    return name


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: Postgres, postgres_template: str) -> Iterator[DatabasePool]:
    """Databases that a test may have; the next test has the same one, emptied."""
    with closing(DatabasePool(postgres_server, postgres_template)) as pool:
        yield pool


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that others are copied from."""
    settings = settings_for(tmp_path_factory.mktemp("template"))
    upgrade(settings)
    return settings.home / "grpo.db"


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh migrated SQLite database: `tmp_path/home/grpo.db`, as `Settings(home=tmp_path/home)` has it."""
    target = tmp_path / "home" / "grpo.db"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{target}"


@pytest.fixture
def postgres_url(postgres_databases: DatabasePool) -> Iterator[str]:
    """A migrated, empty PostgreSQL database."""
    with postgres_databases.database() as url:
        yield url


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port on all local addresses, which must have received no connection at the test's end."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        server.settimeout(0.0)
        yield server
        with pytest.raises(BlockingIOError):
            server.accept()


on_sqlite = pytest.mark.database("sqlite")
on_postgresql = pytest.mark.database("postgresql")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create network namespaces")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The same test on both databases."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "home", database_url)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    """A migrated database, empty."""
    database = connect(settings)
    yield database
    database.engine.dispose()
