"""One service for all tests of a file: they look at what it answers and at what stays behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.serving import Api, serving
from tests.support.servers import Postgres


@pytest.fixture(scope="module")
def api(
    request: pytest.FixtureRequest,
    postgres_server: Postgres,
    postgres_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Api]:
    """The service on a database of its own, with the file's own `ENVIRONMENT`."""
    home: Path = tmp_path_factory.mktemp("fuzz") / "home"
    name = f"grpo_{request.module.__name__.rpartition('.')[2]}"
    postgres_server.copy(postgres_template, name)
    with serving(home, postgres_server.url_of(name), **request.module.ENVIRONMENT) as api:
        yield api
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
