"""The command as a fixture: with a service, and without one."""

import pytest

from service.settings import Settings
from tests.service.cli.command import Grpo


@pytest.fixture
def grpo(settings: Settings, server_url: str, api_key: str) -> Grpo:
    return Grpo(settings, server_url, api_key)


@pytest.fixture
def offline(settings: Settings, api_key: str) -> Grpo:
    """Without a service: for commands that use the database directly, and for errors."""
    return Grpo(settings, "http://127.0.0.1:9", api_key)
