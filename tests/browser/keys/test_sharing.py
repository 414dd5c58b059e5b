"""A read-only key, and a link to one run: what they show, and what they do not offer."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from service.platform.db import connect
from service.platform.tables.core import ApiKey
from tests.browser.charts import drawn
from tests.browser.conftest import Tab, log_in, profile
from tests.browser.deployment import JOBS, Deployment
from tests.browser.test_frame import heading

WRITING = re.compile(
    r"^(New job|Edit|Run again|Share|Pause|Resume|Cancel job|Delete|Archive|Rename|Upload a file|Start|"
    r"Change more in the form|Merged model)"
)


def controls(page: Page) -> list[str]:
    """Names of all buttons and links that would change something."""
    shown = page.locator("button:visible, a:visible, label.button").and_(page.locator(":not(.commands *)"))
    names = [one.strip() for one in shown.all_inner_texts()]
    return [name for name in names if WRITING.match(name)]


def share(deployment: Deployment, job: str) -> tuple[str, str]:
    """Id and address of a new link."""
    path = f"{JOBS}/{deployment.jobs[job]}/shares"
    made = deployment.client.post(path, json={}).raise_for_status().json()
    return made["id"], made["url"].replace(made["url"].split("/#")[0], deployment.url)


@pytest.fixture(scope="module")
def reader(browser: Browser, deployment: Deployment) -> Iterator[Tab]:
    """A tab with a read-only key. All pages share it: a new profile compiles every script again."""
    with profile(browser, deployment) as context:
        log_in(context, deployment.new_key("acme", "read"))
        yield Tab(context.new_page())


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("jobs", "Jobs"),
        ("jobs/{first}", "first-try"),
        ("jobs/{first}/checkpoints", "first-try"),
        ("jobs/{running}", "long"),
        ("jobs/{guarded}", "guarded"),
        ("jobs/{failed}", "tiny · "),
        ("jobs/{first}/rollouts", "Rollouts"),
        ("files", "Files"),
        ("models", "Models"),
    ],
)
def test_a_read_only_key_is_offered_nothing_that_changes_something(
    reader: Tab, deployment: Deployment, address: str, title: str
) -> None:
    reader.reset()
    page = reader.page
    page.goto(f"/#/{address.format(**deployment.jobs)}")
    heading(page, title.format(**deployment.jobs))
    expect(page.locator("#access")).to_have_text("Read-only key")
    expect(page.locator("main .busy")).to_have_count(0)
    assert controls(page) == []
    reader.check([])


def test_the_form_of_a_new_job_says_that_a_read_only_key_cannot_start_one(
    blank: Page, deployment: Deployment, accessible: Callable[[Page], None]
) -> None:
    log_in(blank, deployment.new_key("acme", "read"))
    blank.goto("/#/new")
    heading(blank, "Not allowed with this key")
    expect(blank.get_by_role("alert")).to_have_text("This key lacks the scope write.")
    accessible(blank)


def test_a_key_that_may_write_sees_the_controls(page: Page, deployment: Deployment) -> None:
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    expect(page.get_by_role("button", name="Share")).to_be_visible()
    assert {"New job", "Edit", "Share", "Run again…"} <= set(controls(page))
    expect(page.locator("#access")).to_have_text("")


def test_a_link_is_made_shown_once_listed_and_revoked(
    page: Page,
    blank: Page,
    deployment: Deployment,
    shots: Callable[[Page, str], None],
    expected_errors: list[str],
) -> None:
    expected_errors.append("401")
    page.goto(f"/#/jobs/{deployment.jobs['faster']}")
    page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share this run")
    expect(dialog).to_contain_text("text of the dataset")
    expect(dialog).to_contain_text("No active link.")
    dialog.get_by_label("Expires after").select_option("30 days")
    dialog.get_by_role("button", name="Create link").click()
    link = dialog.get_by_label("Link", exact=True)
    expect(link).to_contain_text("/#/shared/grpo_")
    revoke = dialog.get_by_role("button", name=re.compile("Revoke the link"))
    expect(revoke).to_have_count(1)
    shots(page, "share")
    address = link.inner_text()
    blank.goto(address)
    heading(blank, "higher-rate")
    revoke.click()
    expect(dialog).to_contain_text("No active link.")
    expect(link).to_have_count(0)
    blank.reload()
    heading(blank, "Link not valid")


def test_a_shared_run_is_read_without_a_way_to_anything_else(
    blank: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    _, address = share(deployment, "first")
    requested: list[str] = []
    blank.on("request", lambda request: requested.append(request.url))
    answers: list[tuple[int, str]] = []
    blank.on("response", lambda answer: answers.append((answer.status, answer.url)))
    blank.goto(address)
    heading(blank, "first-try")
    expect(blank.locator("#access")).to_contain_text("Shared run, read-only until")
    expect(blank.get_by_role("navigation", name="Pages", exact=True)).to_be_hidden()
    for title in ("Reward", "Time by phase"):
        drawn(blank, title)
    shots(blank, "shared")
    for tab in ("Metrics", "Checkpoints", "Configuration", "History", "Rollouts"):
        blank.get_by_role("link", name=tab, exact=True).first.click()
        heading(blank, "Rollouts" if tab == "Rollouts" else "first-try")
        expect(blank.locator("main .busy")).to_have_count(0)
        assert controls(blank) == []
        others = [one.get_attribute("href") or "" for one in links(blank)]
        assert [href for href in others if not href.startswith(("#/shared/grpo_", "#main"))] == [], tab
    shots(blank, "shared-rollouts")
    secret = address.rpartition("/")[2]
    assert not any(secret in url for url in requested)
    assert [answer for answer in answers if answer[0] >= 400] == []
    assert blank.evaluate("JSON.stringify([localStorage, sessionStorage])").count("grpo_") == 0


def links(page: Page) -> list[Locator]:
    return page.locator("a[href]:visible").all()


def test_a_shared_run_that_still_trains_stays_live(blank: Page, deployment: Deployment) -> None:
    _, address = share(deployment, "running")
    blank.goto(address)
    heading(blank, "long")
    shown = blank.get_by_role("progressbar").or_(blank.locator(".strip")).first
    before = shown.inner_text()
    expect(shown).not_to_have_text(before)


def test_a_shared_run_leaves_the_visitor_s_own_key_alone(blank: Page, deployment: Deployment) -> None:
    own = deployment.new_key("someone")
    log_in(blank, own)
    _, address = share(deployment, "first")
    blank.goto(address)
    heading(blank, "first-try")
    assert blank.evaluate("localStorage.getItem('grpo.key')") == own
    blank.goto("/#/jobs")
    heading(blank, "Jobs")
    expect(blank.locator("main")).to_contain_text("No jobs yet")


def test_an_expired_link_says_so_and_keeps_the_visitor_s_own_key(
    blank: Page, deployment: Deployment, expected_errors: list[str], shots: Callable[[Page, str], None]
) -> None:
    expected_errors.append("401")
    own = deployment.new_key("someone")
    log_in(blank, own)
    share_id, address = share(deployment, "first")
    database = connect(deployment.api.settings)
    with database.transaction() as session:
        session.get_one(ApiKey, share_id).expires_at = 1.0
    database.engine.dispose()
    blank.goto(address)
    heading(blank, "Link expired")
    expect(blank.get_by_role("alert")).to_contain_text("This shared link has expired.")
    assert blank.evaluate("localStorage.getItem('grpo.key')") == own
    shots(blank, "shared-expired")
