"""Engines of the examples, which start a service in the environment of the test."""

import pytest

from tests.support.forking import client as forking


@pytest.fixture
def forked_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines start without importing torch: `tests.support.forking`. None is kept warm."""
    monkeypatch.setenv("GRPO_ENGINE_PYTHON", str(forking.engine_python()))
    monkeypatch.setenv("GRPO_WARM_ENGINE", "0")
