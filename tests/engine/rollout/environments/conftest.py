"""Real OpenEnv servers, shared by all tests of a process."""

from collections.abc import Iterator

import pytest

from tests.support.openenv.server import OpenEnvServer


@pytest.fixture(scope="session")
def words() -> Iterator[OpenEnvServer]:
    with OpenEnvServer("word") as server:
        yield server


@pytest.fixture(scope="session")
def grid() -> Iterator[OpenEnvServer]:
    with OpenEnvServer("grid") as server:
        yield server


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator allows every port of this machine."""
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")
