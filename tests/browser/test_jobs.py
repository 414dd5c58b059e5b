"""The list of jobs: the API's data, filters, pages, live updates, and links."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import log_in
from tests.browser.deployment import JOBS, Deployment
from tests.service.job_samples import upload

NAMES = "tbody .name > a"
UNNAMED = re.compile(r"^tiny · \d+ \w+ \d{4}, [\d:]{8}$")
"""Title of a job without a name: its model and the time of its creation."""


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def row_of(page: Page, job_id: str) -> Locator:
    return page.get_by_role("row").filter(has=page.locator(f"a[href='#/jobs/{job_id}']"))


def test_every_job_is_listed_newest_first_with_its_status(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    expect(row(page, "first-try")).to_be_visible()
    reported = deployment.get(JOBS)["data"]
    expect(page.locator(NAMES)).to_have_text([job["suffix"] or UNNAMED for job in reported])
    ids = [link.get_attribute("title") for link in page.locator(NAMES).all()]
    assert ids == [job["id"] for job in reported]
    for job in reported:
        if job["status"] != "running":
            expect(row_of(page, job["id"]).locator(".badge")).to_have_text(job["status"])


def test_a_model_of_a_job_is_called_by_the_job_s_name(page: Page, deployment: Deployment) -> None:
    reported = deployment.get(JOBS)
    parent = next(job for job in reported["data"] if job["id"] == deployment.jobs["first"])
    child = next(job for job in reported["data"] if job["id"] == deployment.jobs["faster"])
    child["model"] = f"{parent['fine_tuned_model']}:ckpt-step-20"
    parent["name"] = "Sums"
    page.route(f"**{JOBS}?*", lambda route: route.fulfill(json=reported))
    page.goto("/#/jobs")
    expect(row(page, "higher-rate").locator(".about")).to_contain_text("Sums, step 20 · GRPO")


def test_progress_is_the_jobs_steps(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    progress = deployment.job("guarded")["progress"]
    bar = row(page, "guarded").get_by_role("progressbar")
    expect(bar).to_have_attribute("aria-valuenow", str(progress["step"]))
    expect(bar).to_have_attribute("aria-valuemax", str(progress["total_steps"]))


def test_a_sparkline_goes_from_the_first_to_the_last_reward(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    data = deployment.get(f"{JOBS}/{deployment.jobs['first']}/metrics")["data"]
    line = row(page, "first-try").get_by_role("img")
    expect(line).to_have_accessible_name(
        f"reward of first-try, from {data[0]['reward']:.3g} to {data[-1]['reward']:.3g}"
    )
    assert len(line.locator("polyline").get_attribute("points").split()) == len(data)


def test_a_waiting_job_shows_what_it_waits_for(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    queued = deployment.job("queued")
    expect(row_of(page, queued["id"])).to_contain_text(queued["queue"]["reason"])


def test_metadata_filters_the_list_and_can_be_removed(page: Page) -> None:
    page.goto("/#/jobs")
    row(page, "higher-rate").get_by_role("button", name="team=maths").click()
    expect(row(page, "first-try")).to_have_count(0)
    expect(page.locator(NAMES)).to_have_text(["long", "higher-rate"])
    page.get_by_label("Metadata").fill("try=2")
    page.get_by_role("button", name="Add").click()
    expect(row(page, "long")).to_have_count(0)
    expect(page.locator(NAMES)).to_have_text(["higher-rate"])
    page.get_by_role("button", name="Remove team=maths").click()
    page.get_by_role("button", name="Remove try=2").click()
    expect(row(page, "first-try")).to_be_visible()


def test_metadata_without_matches_shows_an_empty_list(page: Page) -> None:
    page.goto("/#/jobs?metadata=team%3Dmissing")
    expect(page.get_by_role("heading", name="No matching jobs")).to_be_visible()


def test_a_status_hides_the_jobs_of_the_others(page: Page) -> None:
    page.goto("/#/jobs")
    page.get_by_label("Status").select_option("paused")
    expect(row(page, "first-try")).to_have_count(0)
    expect(page.locator(NAMES)).to_have_text(["guarded"])
    page.reload()
    expect(page.locator(NAMES)).to_have_text(["guarded"])


def test_a_part_of_the_name_finds_jobs(page: Page) -> None:
    page.goto("/#/jobs")
    page.get_by_role("searchbox", name="Search").fill("HIGHER")
    expect(page.locator(NAMES)).to_have_text(["higher-rate"])
    page.reload()
    expect(page.get_by_role("searchbox", name="Search")).to_have_value("HIGHER")
    page.get_by_role("searchbox", name="Search").fill("nothing like it")
    page.get_by_role("button", name="Clear filters").click()
    expect(row(page, "first-try")).to_be_visible()


def test_a_search_that_is_left_keeps_the_next_page_s_address(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    link = page.locator(f"a[href='#/jobs/{deployment.jobs['first']}']")
    link.wait_for()
    page.get_by_label("Search").fill("first")
    link.click()
    page.wait_for_timeout(600)  # the search follows the last key by a quarter of a second
    assert page.url.endswith(f"#/jobs/{deployment.jobs['first']}")


def test_a_column_sorts_the_list_in_both_directions(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    jobs = deployment.get(JOBS, archived=False)["data"]
    jobs.sort(key=lambda job: (job["name"] or job["suffix"] or job["id"]).lower())
    names = [job["name"] or job["suffix"] or UNNAMED for job in jobs]
    head = page.get_by_role("columnheader", name="Job")
    head.get_by_role("button").click()
    expect(page.locator(NAMES)).to_have_text(names)
    expect(head).to_have_attribute("aria-sort", "ascending")
    head.get_by_role("button").click()
    expect(page.locator(NAMES)).to_have_text(names[::-1])
    expect(head).to_have_attribute("aria-sort", "descending")


def test_the_held_out_change_is_the_verdict_s(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    verdict = deployment.job("first")["eval"]["verdict"]
    shown = row(page, "first-try").locator(".held-out")
    expect(shown).to_contain_text(f"{verdict['difference']:+.3f}".replace("-", "−"))
    significant = verdict["low"] > 0 or verdict["high"] < 0
    expect(shown.get_by_text("not significant")).to_have_count(0 if significant else 1)


def test_a_rise_that_a_finding_doubts_is_not_shown_as_a_success(page: Page, deployment: Deployment) -> None:
    path = f"{JOBS}/{deployment.jobs['first']}/diagnosis"
    doubt = {"code": "length_hacking", "severity": "warning", "cause": "The reward grows with length."}
    page.route(f"**{path}", lambda route: route.fulfill(json={"findings": [doubt]}))
    page.goto("/#/jobs")
    doubted = row(page, "first-try").locator(".held-out")
    expect(doubted).to_contain_text("In doubt: The reward grows with length.")
    expect(doubted.locator(".change.unclear strong")).to_have_text(re.compile(r"\+0\.\d{3}"))
    page.unroute_all()
    page.route(f"**{path}", lambda route: route.fulfill(json={"findings": []}))
    page.reload()
    expect(row(page, "first-try").locator(".held-out .change.good")).to_be_visible()


def test_a_guard_s_warning_gives_way_to_the_finding_that_explains_the_run(
    page: Page, deployment: Deployment
) -> None:
    path = f"{JOBS}/{deployment.jobs['first']}/diagnosis"
    warned = {**deployment.job("first"), "attention": "In 93.8% of the groups all rewards are equal."}
    page.route(f"**{JOBS}?limit=20*", lambda route: route.fulfill(json={"data": [warned], "has_more": False}))
    doubt = {"code": "not_held_out", "severity": "warning", "cause": "The model memorises the rows."}
    page.route(f"**{path}", lambda route: route.fulfill(json={"findings": [doubt]}))
    page.goto("/#/jobs")
    status = row(page, "first-try").locator(".status")
    expect(status.locator(".why")).to_have_text("The model memorises the rows.")
    page.unroute(f"**{path}")
    harmless = {"code": "few_signals", "severity": "info", "cause": "Already solved."}
    page.route(f"**{path}", lambda route: route.fulfill(json={"findings": [harmless]}))
    page.reload()
    expect(status.locator(".why")).to_have_text("Already solved.")


def test_the_held_out_change_of_a_supervised_job_is_that_of_its_loss(
    page: Page, deployment: Deployment
) -> None:
    lowered = {**deployment.job("supervised"), "eval": {"baseline": {"step": 0, "loss": 4.366}}}
    lowered["eval"] |= {"last": {"step": 60, "loss": 1.958}, "best": None, "verdict": None}
    page.route(
        f"**{JOBS}?limit=20*", lambda route: route.fulfill(json={"data": [lowered], "has_more": False})
    )
    page.goto("/#/jobs")
    expect(row(page, "warm-up").locator(".held-out .good")).to_have_text("−2.408 loss")


def test_a_job_is_renamed_tagged_archived_and_deleted(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client), suffix="to-edit")
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    page.goto("/#/jobs")
    page.get_by_role("button", name="Edit to-edit").click()
    dialog = page.get_by_role("dialog", name="Edit job")
    dialog.get_by_label("Name").fill("Second try")
    dialog.get_by_label("Notes").fill("It was too slow.")
    dialog.get_by_label("Tags").fill("slow, keep, slow")
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "Second try").locator("button.chip")).to_have_text(["slow", "keep"])
    saved = deployment.get(f"{JOBS}/{job_id}")
    assert (saved["name"], saved["notes"], saved["tags"]) == (
        "Second try",
        "It was too slow.",
        ["slow", "keep"],
    )
    row(page, "Second try").get_by_role("button", name="slow").click()
    expect(page.locator(NAMES)).to_have_text(["Second try"])
    page.get_by_label("Select Second try").check()
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("heading", name="No matching jobs")).to_be_visible()
    page.get_by_label("Archived").check()
    page.get_by_label("Select Second try").check()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No matching jobs")).to_be_visible()
    assert deployment.client.get(f"{JOBS}/{job_id}").status_code == 404


def test_a_name_that_the_service_refuses_is_explained_in_the_dialog(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    page.goto("/#/jobs")
    page.get_by_role("button", name="Edit first-try").click()
    dialog = page.get_by_role("dialog", name="Edit job")
    dialog.get_by_label("Tags").fill("x" * 65)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("tags[0]")
    assert deployment.job("first")["tags"] == []


def test_a_dialog_closes_with_its_page(page: Page) -> None:
    page.goto("/#/jobs")
    page.get_by_role("button", name="Edit first-try").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    expect(page.locator("dialog")).to_have_count(0)


def test_more_jobs_are_loaded_page_by_page(page: Page, deployment: Deployment) -> None:
    def smaller(route: Route) -> None:
        route.continue_(url=route.request.url.replace("limit=20", "limit=3"))

    page.route("**/v1/fine_tuning/jobs?limit=20*", smaller)
    page.goto("/#/jobs")
    expect(page.locator("tbody tr")).to_have_count(3)
    total = len(deployment.get(JOBS, limit=100)["data"])
    while (shown := page.locator("tbody tr").count()) < total:
        page.get_by_role("button", name="Load more").click()
        expect(page.locator("tbody tr")).to_have_count(min(total, shown + 3))
    expect(page.get_by_role("button", name="Load more")).to_be_hidden()


def test_chosen_jobs_are_compared(page: Page, deployment: Deployment) -> None:
    page.goto("/#/jobs")
    compare = page.get_by_role("button", name="Compare")
    page.get_by_label("Select first-try").check()
    expect(compare).to_be_disabled()
    page.get_by_label("Select higher-rate").press("Space")
    compare.click()
    expect(page.get_by_role("heading", name="Compare jobs")).to_be_visible()
    chosen = [deployment.jobs["faster"], deployment.jobs["first"]]
    assert page.url.endswith(f"#/compare?jobs={','.join(chosen)}")


def test_a_change_appears_without_a_reload(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client))
    page.goto("/#/jobs")
    badge = row_of(page, job_id).locator(".badge")
    expect(badge).to_have_text("queued")
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    expect(badge).to_have_text("cancelled")


def test_markup_in_a_jobs_metadata_stays_text(page: Page, deployment: Deployment) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    job_id = deployment.create(upload(deployment.client), metadata={"note": hostile})
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    page.goto("/#/jobs")
    expect(row_of(page, job_id).locator("button.chip")).to_have_text(f"note={hostile}")
    assert page.locator("main img").count() == 0


def test_a_tenant_without_jobs_sees_how_to_create_one(blank: Page, deployment: Deployment) -> None:
    log_in(blank, deployment.new_key("newcomer"))
    blank.goto("/#/jobs")
    expect(blank.get_by_role("heading", name="No jobs yet")).to_be_visible()
    expect(blank.get_by_placeholder("Name, id or model")).to_be_hidden()
    blank.get_by_role("link", name="Show archived jobs").click()
    expect(blank.get_by_label("Archived")).to_be_checked()


def test_the_list_looks_right(page: Page, shots: Callable[[Page, str], None]) -> None:
    page.goto("/#/jobs")
    expect(page.locator("tbody .sparkline")).not_to_have_count(0)
    shots(page, "jobs")
