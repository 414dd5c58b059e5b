"""A real Chromium before a real deployment. `page` is logged in; a console error fails the test.

One deployment and one browser serve all tests of this folder: change no job of `deployment.jobs`, make your
own with `deployment.create`. Screenshots go to `GRPO_SCREENSHOTS`, else to `build/screenshots`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from service.migrate import upgrade
from tests.browser.deployment import Deployment
from tests.browser.deployment import deployment as deployed
from tests.conftest import settings_for
from tests.worker.conftest import ROOT

SCREENSHOTS = Path(os.environ.get("GRPO_SCREENSHOTS", ROOT / "build" / "screenshots"))
"""Read before `clean_environment` takes the variable away."""
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
WAIT_MS = 15_000


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Iterator[Deployment]:
    """Its jobs by the names of their stories: `deployment.jobs["first"]`."""
    home = tmp_path_factory.mktemp("browser") / "home"
    upgrade(settings_for(home))
    with deployed(home, f"sqlite:///{home / 'grpo.db'}") as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "make system installs chromium"
    # as root Chromium runs only without its sandbox, and a container's /dev/shm is too small for it
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser, deployment: Deployment) -> Iterator[BrowserContext]:
    """A fresh browser profile; errors of any of its pages fail the test, but for `expected_errors`."""
    context = browser.new_context(
        base_url=deployment.url, viewport=DESKTOP, reduced_motion="reduce", accept_downloads=True
    )
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def expected_errors() -> list[str]:
    """Parts of console errors that the test is about: `expected_errors.append("401")`."""
    return []


@pytest.fixture
def blank(context: BrowserContext, expected_errors: list[str]) -> Iterator[Page]:
    """A page without a key, at no address yet."""
    found: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: found.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    yield page
    page.close()
    unexpected = [text for text in found if not any(part in text for part in expected_errors)]
    assert not unexpected, unexpected


@pytest.fixture
def page(blank: Page, deployment: Deployment) -> Page:
    """A page at the dashboard, with the key of tenant acme: `page.goto("/#/jobs")`."""
    log_in(blank, deployment.key)
    return blank


def log_in(page: Page, key: str) -> None:
    """What the form does, without filling it in."""
    page.add_init_script(f"localStorage.setItem('grpo.key', localStorage.getItem('grpo.key') ?? '{key}')")


@pytest.fixture
def shots(page: Page) -> Callable[[str], None]:
    """Keeps what the page shows: `shots("jobs")` → jobs-light.png, jobs-dark.png, jobs-phone.png."""

    def take(name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        views = (("light", "light", DESKTOP), ("dark", "dark", DESKTOP), ("phone", "light", PHONE))
        for view, scheme, size in views:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 150)))")
            page.screenshot(path=SCREENSHOTS / f"{name}-{view}.png", full_page=True)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{name} is {wide} px wider than the {view} window"

    return take
