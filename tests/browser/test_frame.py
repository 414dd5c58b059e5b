"""The frame: the key, navigation, themes, an unreachable service, and the static files' headers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.charts import drawn, figure
from tests.browser.conftest import log_in
from tests.browser.deployment import Deployment

PLOTLY = "/dashboard/vendor/plotly.min.js"


def heading(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


def test_a_visitor_without_a_key_logs_in_and_sees_the_jobs(blank: Page, deployment: Deployment) -> None:
    blank.goto("/")
    heading(blank, "Your key")
    blank.get_by_label("API key").fill(deployment.key)
    blank.get_by_role("button", name="Continue").click()
    heading(blank, "Jobs")
    blank.reload()
    heading(blank, "Jobs")


def test_a_refused_key_is_removed_and_the_login_shows_the_reason(
    blank: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("401")
    log_in(blank, "grpo_wrong")
    blank.goto(f"/#/jobs/{deployment.jobs['first']}")
    heading(blank, "Your key")
    expect(blank.get_by_role("alert")).to_have_text("Invalid API key.")
    assert blank.evaluate("localStorage.getItem('grpo.key')") is None
    blank.get_by_label("API key").fill(deployment.key)
    blank.get_by_role("button", name="Continue").click()
    heading(blank, "first-try")


def test_signing_out_removes_the_key_from_the_browser(blank: Page, deployment: Deployment) -> None:
    log_in(blank, deployment.key)
    blank.goto("/")
    heading(blank, "Jobs")
    blank.get_by_role("button", name="Sign out").click()
    heading(blank, "Your key")
    assert blank.evaluate("localStorage.getItem('grpo.key')") is None


def test_an_unreachable_service_is_reported_and_the_page_recovers(
    page: Page, expected_errors: list[str], accessible: Callable[[Page], None]
) -> None:
    expected_errors.append("ERR_CONNECTION_REFUSED")
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    page.goto("/")
    expect(page.get_by_role("alert")).to_contain_text("The service does not respond. Is it running?")
    expect(page.locator("#banner")).to_contain_text("No connection to the service.")
    accessible(page)
    page.unroute("**/v1/**")
    expect(page.get_by_role("link", name="first-try")).to_be_visible()
    expect(page.locator("#banner")).to_be_hidden()


@contextmanager
def stopped(deployment: Deployment) -> Iterator[None]:
    """The API's process does not run in the block; afterwards it runs at the same address."""
    deployment.api.kill()
    try:
        yield
    finally:
        deployment.api.start()


def test_a_page_of_a_running_job_updates_again_after_an_outage_of_the_service(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE"]
    expected_errors += ["ERR_CONNECTION_RESET"]
    page.goto(f"/#/jobs/{deployment.jobs['running']}")
    heading(page, "long")
    drawn(page, "Reward")
    page.evaluate("document.querySelector('h1').dataset.kept = 'yes'")
    banner = page.locator("#banner")
    with stopped(deployment):
        expect(banner).to_contain_text("This page updates again when the service responds.")
        drawn(page, "Reward")
    expect(banner).to_be_hidden()
    before = int(deployment.job("running")["progress"]["step"])
    shown = figure(page, "Reward").locator(".plot").element_handle()
    page.wait_for_function(
        "([plot, step]) => plot.data.some(({ x }) => x.at(-1) > step)", arg=[shown, before]
    )
    assert page.evaluate("document.querySelector('h1').dataset.kept") == "yes"


def test_a_page_opened_while_the_service_is_away_is_shown_in_full_once_it_is_back(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("Failed to load resource")
    page.goto("/")
    heading(page, "Jobs")
    expect(page.get_by_role("link", name="first-try")).to_be_visible()
    with stopped(deployment):
        page.get_by_role("link", name="first-try").click()
        expect(page.locator("#banner")).to_contain_text("No connection to the service.")
        expect(page.get_by_role("alert")).to_contain_text("The service does not respond.")
    heading(page, "first-try")
    assert drawn(page, "Reward")["Training"]["x"][-1] == 40
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.get_by_role("alert")).to_have_count(0)


PARTS = "main :is(section, aside, table, .panel, .field)"
PLACED = f"""() => JSON.stringify([...document.querySelectorAll("{PARTS}")]
    .filter((one) => one.checkVisibility()).map((one) => {{
        const at = one.getBoundingClientRect();
        return [one.tagName, one.className, Math.round(at.left), Math.round(at.width)].join(" ");
    }}))"""
"""Horizontal position and width of the parts of the page."""


def test_the_layout_of_a_page_does_not_depend_on_the_previous_page(
    page: Page, deployment: Deployment
) -> None:
    rollouts = f"/#/jobs/{deployment.jobs['first']}/rollouts"
    pages = {
        "/#/jobs": "Jobs",
        "/#/new": "New job",
        "/#/try": "Try a model",
        "/#/grader": "Grader bench",
        rollouts: "Rollouts",
    }
    alone = {}
    for path, title in pages.items():
        page.goto(path)
        page.reload()
        heading(page, title)
        page.wait_for_load_state("networkidle")
        alone[path] = page.evaluate(PLACED)
    for path in [*pages, *reversed(pages)]:
        page.goto(path)
        page.wait_for_function(f"(alone) => ({PLACED})() === alone", arg=alone[path])


def test_an_unknown_address_shows_an_error(page: Page) -> None:
    page.goto("/#/nowhere")
    expect(page.get_by_role("alert")).to_contain_text("No page at this address.")
    page.get_by_role("link", name="All jobs").click()
    heading(page, "Jobs")


def test_a_link_that_was_cut_off_within_an_escape_shows_an_error(
    page: Page, expected_errors: list[str]
) -> None:
    expected_errors.append("404")
    page.goto("/#/jobs/%E0")
    heading(page, "Not found")


def test_navigation_focuses_the_title_and_sets_the_document_title(page: Page, deployment: Deployment) -> None:
    page.goto("/")
    page.get_by_role("link", name="first-try").press("Enter")
    heading(page, "first-try")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page).to_have_title("first-try · GRPO service")


def test_the_first_tab_stop_skips_to_the_content(page: Page) -> None:
    page.goto("/")
    heading(page, "Jobs")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    heading(page, "Jobs")


def test_a_page_that_is_left_while_it_loads_does_not_empty_the_next_one(own_page: Page) -> None:
    held: list[Route] = []
    own_page.goto("/#/jobs")
    heading(own_page, "Jobs")
    own_page.route("**/pages/files/page.js", lambda route: held.append(route))
    with own_page.expect_request("**/pages/files/page.js"):
        own_page.goto("/#/files")
    own_page.goto("/#/jobs")
    heading(own_page, "Jobs")
    held[0].continue_()
    own_page.evaluate("import('/dashboard/pages/files/page.js')")
    heading(own_page, "Jobs")
    expect(own_page.get_by_role("button", name="Edit first-try")).to_be_visible()


def test_the_theme_follows_the_system_until_one_is_chosen(blank: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    blank.emulate_media(color_scheme="dark")
    blank.goto("/")
    dark = blank.evaluate(background)
    blank.get_by_role("button", name="Use the light theme").click()
    light = blank.evaluate(background)
    assert light != dark
    blank.reload()
    assert blank.evaluate(background) == light


@pytest.mark.parametrize("path", ["/", "/dashboard/app.js", "/dashboard/style.css", PLOTLY])
def test_every_static_file_needs_no_key_and_has_the_strict_headers(deployment: Deployment, path: str) -> None:
    answer = httpx.get(deployment.url + path, timeout=60)
    policy = answer.headers["content-security-policy"].split("; ")
    assert answer.status_code == 200
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_charts_library_is_cached(deployment: Deployment) -> None:
    first = httpx.get(deployment.url + PLOTLY, timeout=60)
    assert first.headers["cache-control"] == "public, max-age=604800"
    again = httpx.get(deployment.url + PLOTLY, headers={"If-None-Match": first.headers["etag"]}, timeout=60)
    assert again.status_code == 304


@pytest.mark.parametrize(
    "name", ["widgetbundle.js", "datasets/iris.csv.gz", "../__init__.py", "%2e%2e/app.js"]
)
def test_other_files_of_the_charts_package_are_not_served(deployment: Deployment, name: str) -> None:
    answer = httpx.get(f"{deployment.url}/dashboard/vendor/{name}", timeout=60)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_route"


def test_the_static_files_are_not_in_the_api_document(deployment: Deployment) -> None:
    paths = httpx.get(f"{deployment.url}/openapi.json", timeout=60).json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/dashboard")]


def test_the_key_form_looks_right(blank: Page, shots: Callable[[Page, str], None]) -> None:
    blank.goto("/")
    heading(blank, "Your key")
    shots(blank, "key")


def test_ages_do_not_depend_on_the_browser_s_clock(own_page: Page, deployment: Deployment) -> None:
    own_page.clock.set_system_time(datetime.now(UTC) + timedelta(days=3))
    own_page.goto(f"/#/jobs/{deployment.jobs['first']}")
    results = own_page.get_by_role("region", name="Results")
    expect(results).to_contain_text("Finished")
    expect(results).not_to_contain_text("3 days")
