"""The diagnosis on a job's page: the API's findings, and the retry button."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser.deployment import JOBS, Deployment


def test_a_failed_job_s_diagnosis_is_the_api_s(page: Page, deployment: Deployment) -> None:
    found = deployment.get(f"{JOBS}/{deployment.jobs['failed']}/diagnosis")["findings"]
    page.goto(f"/#/jobs/{deployment.jobs['failed']}")
    panel = page.get_by_role("region", name="Diagnosis")
    expect(panel.get_by_role("article")).to_have_count(len(found))
    failure = deployment.job("failed")["failure"]
    for finding in found:
        new = [line for line in finding["evidence"] if line not in failure["evidence"]]
        for text in (finding["cause"], finding["code"], *new):
            expect(panel).to_contain_text(text)


def test_the_failure_shown_above_is_not_repeated(page: Page, deployment: Deployment) -> None:
    failure = deployment.job("failed")["failure"]
    reported = deployment.get(f"{JOBS}/{deployment.jobs['failed']}/diagnosis")["findings"][0]
    assert set(failure["evidence"]) <= set(reported["evidence"])
    page.goto(f"/#/jobs/{deployment.jobs['failed']}")
    expect(page.get_by_role("region", name="Failure")).to_contain_text(failure["evidence"][0])
    listed = page.get_by_role("region", name="Diagnosis").get_by_role("listitem")
    expect(listed.first).to_be_visible()
    assert not set(failure["evidence"]) & set(listed.all_inner_texts())


def test_a_job_is_cloned_with_the_change_only_after_confirmation(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["failed"]
    (finding, *_) = deployment.get(f"{JOBS}/{job_id}/diagnosis")["findings"]
    num_jobs = len(deployment.get(JOBS, limit=100)["data"])
    page.goto(f"/#/jobs/{job_id}")
    press = page.get_by_role("article").first.get_by_role("button")
    press.click()
    page.get_by_role("dialog").get_by_role("button", name="Not now").click()
    assert len(deployment.get(JOBS, limit=100)["data"]) == num_jobs
    press.click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda url: "#/jobs/" in url and job_id not in url)
    new_id = page.url.rpartition("/")[2]
    events = deployment.get(f"{JOBS}/{new_id}/events", limit=100)["data"]
    assert events[-1]["message"].endswith(f"a clone of {job_id}")
    deployment.client.post(f"{JOBS}/{new_id}/cancel").raise_for_status()
    assert finding["patch"] is not None


def test_a_job_without_findings_has_no_panel(page: Page, deployment: Deployment) -> None:
    assert deployment.get(f"{JOBS}/{deployment.jobs['first']}/diagnosis")["findings"] == []
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    expect(page.get_by_role("heading", name="Curves")).to_be_visible()
    expect(page.get_by_role("heading", name="Diagnosis")).to_have_count(0)


@pytest.mark.parametrize("name", ["failed", "supervised"])
def test_the_form_with_the_change_has_the_request_of_the_clone(
    page: Page, deployment: Deployment, name: str
) -> None:
    path = f"{JOBS}/{deployment.jobs[name]}"
    (finding, *_) = deployment.get(f"{path}/diagnosis")["findings"]
    page.goto(f"/#/jobs/{deployment.jobs[name]}")
    page.get_by_role("link", name="Edit with this change").click()
    shown = page.get_by_text("with this change:").locator("code").inner_text()
    assert json.loads(shown) == finding["patch"]
    body = json.loads(page.get_by_label("Request as JSON").input_value())
    checked = deployment.client.post(f"{JOBS}/validate", json=body).json()
    clone = deployment.client.post(f"{path}/clone", json=finding["patch"]).json()
    deployment.client.post(f"{JOBS}/{clone['id']}/cancel").raise_for_status()
    own = deployment.client.post(f"{JOBS}/validate", json={**body, "method": clone["method"]}).json()
    assert checked["problems"] == []
    assert checked["method"] == own["method"]
