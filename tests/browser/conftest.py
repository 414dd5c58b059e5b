"""A real Chromium before a real deployment. `page` is logged in; a console error fails the test.

One deployment, one browser and one tab serve all tests of this folder: change no job of `deployment.jobs`,
make your own with `deployment.create`. With `GRPO_SCREENSHOTS=FOLDER` the tests write screenshots there.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from service.platform.migrate import upgrade
from tests.browser.accessibility import ALL, BUT_COLOUR, BY_COLOUR, violations
from tests.browser.deployment import Deployment
from tests.browser.deployment import deployment as deployed
from tests.conftest import settings_for

SCREENSHOTS = os.environ.get("GRPO_SCREENSHOTS")
"""Read before `clean_environment` takes the variable away."""
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}
TABLETS: tuple[ViewportSize, ...] = ({"width": 768, "height": 1024}, {"width": 1024, "height": 768})
VIEWS: tuple[tuple[str, Literal["light", "dark"], ViewportSize, dict[str, Any]], ...] = (
    ("light", "light", DESKTOP, ALL),
    ("dark", "dark", DESKTOP, BY_COLOUR),
    ("phone", "light", PHONE, BUT_COLOUR),
)
"""Of each page, with the rules of axe-core: the dark theme changes colours only, and a phone changes none."""
WAIT_MS = 60_000
NOWHERE = "/#/nowhere"
"""An address of no page, which needs no request."""
TOO_WIDE = """Math.max(document.documentElement.scrollWidth - innerWidth,
  ...[...document.querySelectorAll("table.cards")]
    .map((one) => (innerWidth < 640 ? one.scrollWidth - one.parentNode.clientWidth : 0)),
  ...[...document.querySelectorAll(".panel.flush:not(.scroll)")]
    .map((one) => one.scrollWidth - one.clientWidth))"""
"""Pixels that a page exceeds its window, a list its panel without scrolling, or cards theirs on a phone."""
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


@dataclass
class Tab:
    """A page and the errors and warnings of its console."""

    page: Page
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on(
            "console", lambda said: self._keep(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self._keep(str(error)))

    def _keep(self, text: str) -> None:
        self.found.append(text)

    def reset(self) -> None:
        """Leave the page that is shown, and take back what a test has set."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size(DESKTOP)
        self.page.mouse.move(0, 0)
        self.page.goto(NOWHERE)
        self.page.evaluate("sessionStorage.clear()")

    def check(self, expected: list[str]) -> None:
        """The console has had expected messages only since the last check."""
        unexpected = [text for text in self.found if not any(part in text for part in expected)]
        self.found.clear()
        assert not unexpected, unexpected


def new_tab(context: BrowserContext) -> Tab:
    """A tab at no page's address."""
    tab = Tab(context.new_page())
    tab.reset()
    return tab


@pytest.fixture(scope="package")
def shared_tab(context: BrowserContext) -> Tab:
    """The one of all tests: a new one would compile the charts' library again, for 1.5 s of a core."""
    return new_tab(context)


@pytest.fixture
def page(shared_tab: Tab, expected_errors: list[str]) -> Iterator[Page]:
    """A page with the key, at no page's address: `page.goto("/#/jobs")`.

    It may have shown other pages before. For tests that touch neither the key nor the theme.
    """
    yield shared_tab.page
    shared_tab.reset()
    shared_tab.check(expected_errors)


@pytest.fixture
def own_page(context: BrowserContext, expected_errors: list[str]) -> Iterator[Page]:
    """A tab with the key for this test only, which may replace the dashboard's frame."""
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
    """A new tab whose errors and warnings on the console fail the test, but for the expected ones."""
    tab = Tab(context.new_page())
    yield tab.page
    tab.page.close()
    tab.check(expected_errors)


def log_in(place: Page | BrowserContext, key: str) -> None:
    """What the form does, without filling it in."""
    place.add_init_script(f"localStorage.setItem('grpo.key', localStorage.getItem('grpo.key') ?? '{key}')")


@pytest.fixture
def accessible() -> Callable[[Page], None]:
    """axe-core finds nothing on the page, light or dark: `accessible(page)`."""

    def check(page: Page) -> None:
        schemes: tuple[tuple[Literal["light", "dark"], dict[str, Any]], ...]
        schemes = (("light", ALL), ("dark", BY_COLOUR))
        for scheme, rules in schemes:
            page.emulate_media(color_scheme=scheme)
            page.evaluate(SETTLED)
            found = "\n".join(violations(page, rules))
            assert not found, f"{scheme}:\n{found}"

    return check


@pytest.fixture
def shots() -> Callable[[Page, str], None]:
    """A page fits its window and is accessible: `shots(page, "jobs")` writes jobs-{light,dark,phone}.png."""

    def take(page: Page, name: str) -> None:
        for view, scheme, size, rules in VIEWS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            page.evaluate(SETTLED)
            if SCREENSHOTS:
                page.screenshot(path=Path(SCREENSHOTS, f"{name}-{view}.png"), full_page=True)
            wide = page.evaluate(TOO_WIDE)
            assert wide <= 0, f"{name} is {wide} px wider than the {view} window"
            found = "\n".join(violations(page, rules))
            assert not found, f"{name}, {view}:\n{found}"
        for size in TABLETS:
            page.set_viewport_size(size)
            page.evaluate(SETTLED)
            wide = page.evaluate(TOO_WIDE)
            assert wide <= 0, f"{name} is {wide} px wider than a window of {size['width']} px"

    return take
