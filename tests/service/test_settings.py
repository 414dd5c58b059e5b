"""Paths and URLs in the settings, and programs with an invalid one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.platform.db import connect
from service.settings import Settings
from tests.conftest import settings_for

ROOT = Path(__file__).parents[2]


def test_relative_paths_belong_to_the_folder_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines run in other folders."""
    monkeypatch.chdir(tmp_path)
    relative = {"models": "models.json", "endpoints": "endpoints.json", "tensorboard_dir": "boards"}
    found = settings_for(Path("home"), engine_python=".venv/bin/python", **relative)
    assert found.home == tmp_path / "home"
    assert found.storage_location == f"file://{tmp_path}/home/artifacts"
    assert (found.models, found.endpoints) == (tmp_path / "models.json", tmp_path / "endpoints.json")
    assert found.tensorboard_dir == tmp_path / "boards"
    assert found.engine_python == tmp_path / ".venv" / "bin" / "python"


def test_an_empty_variable_is_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty GRPO_HOME would be the current folder, which `grpo up` makes private."""
    for name in ("GRPO_HOME", "GRPO_MODELS", "GRPO_BROKER_URL", "GRPO_GPUS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = Settings()
    assert (found.home, found.models, found.broker_url) == (tmp_path / ".grpo", None, None)


def test_an_engine_python_without_a_folder_is_found_in_path(tmp_path: Path) -> None:
    assert settings_for(tmp_path, engine_python="python3").engine_python == Path("python3")


@pytest.mark.parametrize("name", ["100% größe 🚀 %20", "who?a=b#c;d&e", 'it\'s "mine"', "a+b@c:d@e"])
def test_the_database_is_inside_a_home_of_any_name(tmp_path: Path, name: str) -> None:
    database = connect(settings_for(tmp_path / name))
    with database.reading() as session:
        assert session.connection().exec_driver_sql("SELECT 1").scalar_one() == 1
    database.engine.dispose()
    assert (tmp_path / name / "grpo.db").is_file()


@pytest.mark.parametrize("url", ["hello", "mysql://u@h/db", "postgresql+psycopg2://u@h/db", ""])
def test_a_database_of_another_kind_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValidationError, match="the database is not supported: use postgresql://"):
        settings_for(tmp_path, url)


@pytest.mark.parametrize("url", ["hello", "http://host/", "amqp://u@host"])
def test_a_broker_of_another_kind_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValidationError, match="the broker is not supported: use redis://"):
        settings_for(tmp_path, broker_url=url)


def test_every_spelling_of_a_supported_database_is_accepted(tmp_path: Path) -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        found = settings_for(tmp_path, f"{scheme}://u@h/db").sqlalchemy_url
        assert found == "postgresql+psycopg://u@h/db"


PROGRAMS = ("service", "worker", "worker.sweeper", "worker.serving.chat", "worker.healthcheck")


@pytest.mark.parametrize("program", [*PROGRAMS, "celery -A worker.app worker"])
def test_a_program_with_an_invalid_setting_ends_with_a_sentence(program: str, tmp_path: Path) -> None:
    given = {"PATH": os.environ["PATH"], "GRPO_HOME": str(tmp_path), "GRPO_LEASE_SECONDS": "hidden"}
    command = [sys.executable, "-m", *program.split()]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True)
    expected = "GRPO_LEASE_SECONDS: Input should be a valid number, unable to parse string as a number\n"
    assert (done.returncode, done.stderr) == (1, expected)
