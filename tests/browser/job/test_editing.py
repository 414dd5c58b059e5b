"""A job's name, notes and tags, changed and deleted on its page."""

from playwright.sync_api import Page, expect

from tests.browser.deployment import JOBS, Deployment
from tests.service.job_samples import upload


def test_the_page_of_a_job_edits_and_deletes_it(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client), suffix="edited-here")
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit job")
    dialog.get_by_label("Name").fill("Third try")
    dialog.get_by_label("Notes").fill("With a lower rate.")
    dialog.get_by_label("Tags").fill("slow")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Third try")
    expect(page.get_by_text("With a lower rate.")).to_be_visible()
    expect(page.locator(".about .tag").first).to_have_text("slow")
    page.get_by_role("button", name="Edit").click()
    dialog.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url("/#/jobs")
    assert deployment.client.get(f"{JOBS}/{job_id}").status_code == 404


def test_the_tabs_of_a_job_show_its_log_and_its_use_of_the_machine(
    page: Page, deployment: Deployment
) -> None:
    page.goto(f"/#/jobs/{deployment.jobs['first']}/logs")
    expect(page.get_by_role("log")).to_be_visible()
    page.get_by_role("link", name="System").click()
    expect(page.get_by_role("heading", name="No measurements")).to_be_visible()
