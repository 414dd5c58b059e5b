"""A real Chromium before a real deployment. `page` is logged in; a console error fails the test.

One deployment and one browser serve all tests of this folder: change no job of `deployment.jobs`, make your
own with `deployment.create`. With `GRPO_SCREENSHOTS=FOLDER` the tests write screenshots there.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from service.platform.migrate import upgrade
from tests.browser.accessibility import violations
from tests.browser.deployment import Deployment
from tests.browser.deployment import deployment as deployed
from tests.conftest import settings_for

SCREENSHOTS = os.environ.get("GRPO_SCREENSHOTS")
"""Read before `clean_environment` takes the variable away."""
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
WAIT_MS = 60_000
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
"""Pixels."""
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 150)))"
"""Charts follow a change of the window's size a moment later."""


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Iterator[Deployment]:
    """Its jobs by the names of their stories: `deployment.jobs["first"]`."""
    home = tmp_path_factory.mktemp("browser") / "home"
    upgrade(settings_for(home))
    with deployed(home, f"sqlite:///{home / 'grpo.db'}") as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium-headless-shell")
    assert program, "make system installs chromium"
    # as root Chromium runs only without its sandbox, and a container's /dev/shm is too small for it
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def context(browser: Browser, deployment: Deployment) -> Iterator[BrowserContext]:
    """The profile of a visitor with the key of tenant acme; it keeps the charts' library between tests."""
    with profile(browser, deployment) as context:
        log_in(context, deployment.key)
        yield context


@pytest.fixture
def expected_errors() -> list[str]:
    """Parts of console errors that the test is about: `expected_errors.append("401")`."""
    return []


@pytest.fixture
def page(context: BrowserContext, expected_errors: list[str]) -> Iterator[Page]:
    """A page with the key: `page.goto("/#/jobs")`. For tests that touch neither the key nor the theme."""
    with watched(context, expected_errors) as page:
        yield page


@pytest.fixture
def blank(browser: Browser, deployment: Deployment, expected_errors: list[str]) -> Iterator[Page]:
    """A page of a new profile, without a key."""
    with profile(browser, deployment) as context, watched(context, expected_errors) as page:
        yield page


@contextmanager
def profile(browser: Browser, deployment: Deployment) -> Iterator[BrowserContext]:
    """A browser profile of its own."""
    context = browser.new_context(base_url=deployment.url, viewport=DESKTOP, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@contextmanager
def watched(context: BrowserContext, expected_errors: list[str]) -> Iterator[Page]:
    """A page whose errors and warnings on the console fail the test, but for the expected ones."""
    found: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: found.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    yield page
    page.close()
    unexpected = [text for text in found if not any(part in text for part in expected_errors)]
    assert not unexpected, unexpected


def log_in(place: Page | BrowserContext, key: str) -> None:
    """What the form does, without filling it in."""
    place.add_init_script(f"localStorage.setItem('grpo.key', localStorage.getItem('grpo.key') ?? '{key}')")


@pytest.fixture
def accessible() -> Callable[[Page], None]:
    """axe-core finds nothing on the page, light or dark: `accessible(page)`."""

    def check(page: Page) -> None:
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            page.evaluate(SETTLED)
            found = "\n".join(violations(page))
            assert not found, f"{scheme}:\n{found}"

    return check


@pytest.fixture
def shots() -> Callable[[Page, str], None]:
    """A page fits its window and is accessible: `shots(page, "jobs")` writes jobs-{light,dark,phone}.png."""

    def take(page: Page, name: str) -> None:
        views = (("light", "light", DESKTOP), ("dark", "dark", DESKTOP), ("phone", "light", PHONE))
        for view, scheme, size in views:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            page.evaluate(SETTLED)
            if SCREENSHOTS:
                page.screenshot(path=Path(SCREENSHOTS, f"{name}-{view}.png"), full_page=True)
            wide = page.evaluate(TOO_WIDE)
            assert wide <= 0, f"{name} is {wide} px wider than the {view} window"
            found = "\n".join(violations(page))
            assert not found, f"{name}, {view}:\n{found}"

    return take
