"""The command as a fixture: with a service, without one, and with `grpo up`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.tiny_model import make_model
from service.settings import Settings
from tests.service.cli.command import Grpo
from tests.service.embedded import Up, grpo_job, grpo_up, write_rows


@pytest.fixture
def grpo(settings: Settings, server_url: str, api_key: str) -> Grpo:
    return Grpo(settings, server_url, api_key)


@pytest.fixture
def offline(settings: Settings, api_key: str) -> Grpo:
    """Without a service: for commands that use the database directly, and for errors."""
    return Grpo(settings, "http://127.0.0.1:9", api_key)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("cli") / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    with grpo_up(home) as running:
        yield running


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job of ten steps with its dataset in the same folder."""
    write_rows(tmp_path / "rows.jsonl")
    path = tmp_path / "job.json"
    path.write_text(json.dumps(grpo_job("rows.jsonl")))
    return path
