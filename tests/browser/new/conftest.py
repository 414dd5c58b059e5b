"""A deployment for the form's tests: an API and a worker without other jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from service.platform.migrate import upgrade
from tests.browser.conftest import Tab, log_in, new_tab, profile
from tests.browser.deployment import Deployment, questions
from tests.conftest import settings_for
from tests.e2e.api import api_process
from tests.support.forking import client as forking
from tests.worker.conftest import Processes


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Iterator[Deployment]:
    """A separate one, whose worker has no other jobs."""
    home = tmp_path_factory.mktemp("new-job") / "home"
    settings = settings_for(
        home,
        engine_python=forking.engine_python(),
        engine_module="tests.browser.engine",
        poll_seconds=0.05,
        heartbeat_seconds=0.1,
    )
    upgrade(settings)
    with api_process(settings) as api:
        workers = Processes(settings)
        try:
            api.start()
            workers.start_worker()
            yield Deployment(api)
        finally:
            workers.close()


@pytest.fixture(scope="package")
def context(browser: Browser, deployment: Deployment) -> Iterator[BrowserContext]:
    with profile(browser, deployment) as context:
        log_in(context, deployment.key)
        yield context


@pytest.fixture(scope="package")
def shared_tab(context: BrowserContext) -> Tab:
    return new_tab(context)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_bytes(questions(step_seconds=0))
    return path
