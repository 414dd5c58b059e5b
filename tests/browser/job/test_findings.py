"""The findings on a job's page: the API's, a line each, and the retry button."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.charts import drawn
from tests.browser.deployment import JOBS, Deployment


def test_a_failed_job_shows_its_reason_and_the_api_s_diagnosis(page: Page, deployment: Deployment) -> None:
    found = deployment.get(f"{JOBS}/{deployment.jobs['failed']}/diagnosis")["findings"]
    page.goto(f"/#/jobs/{deployment.jobs['failed']}")
    panel = page.get_by_role("region", name="Failure")
    errors = [finding for finding in found if finding["severity"] == "error"]
    expect(panel.get_by_role("article")).to_have_count(len(errors))
    failure = deployment.job("failed")["failure"]
    for text in (failure["message"], failure["code"], failure["hint"], *failure["evidence"]):
        expect(panel).to_contain_text(text)
    for finding in errors:
        new = [line for line in finding["evidence"] if line not in failure["evidence"]]
        for text in (finding["cause"], *new):
            expect(panel).to_contain_text(text)


def repeated(**more: Any) -> dict[str, Any]:
    """A finding as the API reports it."""
    texts = {"code": "low_signal", "cause": "Groups have no signal.", "advice": "Raise the temperature."}
    unset = dict.fromkeys(("field", "current", "suggested", "patch"))
    return {**texts, "severity": "warning", "evidence": ["9 of 16 groups"], **unset, **more}


def test_without_its_diagnosis_the_page_of_a_job_shows_everything_else(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("500")
    error = {"error": {"message": "It is broken.", "code": "internal_error"}}
    path = f"**{JOBS}/{deployment.jobs['first']}/diagnosis"
    page.route(path, lambda route: route.fulfill(status=500, json=error))
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    expect(page.get_by_role("alert")).to_contain_text("It is broken.")
    expect(page.get_by_role("region", name="Results")).to_be_visible()
    expect(page.get_by_role("figure").first).to_be_visible()


def test_a_finding_is_one_line_with_its_numbers_and_opens_on_a_click(
    page: Page, deployment: Deployment
) -> None:
    path = f"{JOBS}/{deployment.jobs['first']}/diagnosis"
    compared = [
        {"label": "held-out", "value": 0.862},
        {"label": "training", "value": 0.7792, "step": 140},
        {"label": "kl, steps 121–140", "value": 0.25, "step": 140},
    ]
    finding = repeated(count=7, first_step=12, last_step=147, compared=compared)
    answer = {**deployment.get(path), "findings": [finding]}
    page.route(f"**{path}", lambda route: route.fulfill(json=answer))
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    line = page.get_by_role("region", name="Findings").locator("summary").filter(has_text=finding["cause"])
    expect(line).to_have_text(
        "Groups have no signal.held-out 0.862 · training 0.779 at step 140 · "
        "KL divergence to the reference, steps 121–140: 0.257 times, last at step 147"
    )
    expect(page.get_by_text("Raise the temperature.")).to_be_hidden()
    line.press("Enter")
    expect(page.get_by_text("Raise the temperature.")).to_be_visible()
    expect(page.get_by_text("9 of 16 groups", exact=True)).to_be_visible()


def test_a_share_is_compared_in_percent(page: Page, deployment: Deployment) -> None:
    compared = [{"label": "frac_reward_zero_std, steps 41–60", "value": 1}, {"label": "limit", "value": 0.8}]
    path = f"{JOBS}/{deployment.jobs['first']}/diagnosis"
    answer = {"findings": [repeated(compared=compared)]}
    page.route(f"**{path}", lambda route: route.fulfill(json=answer))
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    shown = page.get_by_role("region", name="Findings").locator(".compared")
    expect(shown.first).to_have_text(
        re.compile(r"^Groups without signal, steps 41–60: 100\s%.* · limit 80\s%")
    )


def test_a_finding_without_a_value_leads_to_its_field_in_the_form(page: Page, deployment: Deployment) -> None:
    path = f"{JOBS}/{deployment.jobs['first']}/diagnosis"
    answer = {"findings": [repeated(field="method.reinforcement.grader")]}
    page.route(f"**{path}", lambda route: route.fulfill(json=answer))
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    page.get_by_role("region", name="Findings").locator("summary").first.click()
    page.get_by_role("link", name="Edit the grader in the form").click()
    expect(page.locator("#new-method-reinforcement-grader-type")).to_be_focused()


def test_repeated_warnings_are_one_line_with_their_number(page: Page, deployment: Deployment) -> None:
    job = deployment.job("guarded")
    job["warnings"] = [{"code": "skipped", "message": f"far at {step}", "step": step} for step in (3, 9)]
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    diagnosis = {**deployment.get(f"{JOBS}/{job['id']}/diagnosis"), "findings": []}
    page.route(f"**{JOBS}/{job['id']}/diagnosis", lambda route: route.fulfill(json=diagnosis))
    page.goto(f"/#/jobs/{job['id']}")
    line = page.get_by_role("region", name="Findings").locator("summary").filter(has_text="far at 9")
    expect(line).to_contain_text("2 times, last at step 9")
    line.click()
    expect(page.get_by_text("far at 3")).to_be_visible()


def test_the_results_lead_to_the_findings_of_which_the_severe_are_first(
    page: Page, deployment: Deployment
) -> None:
    job = {**deployment.job("first"), "warnings": [{"code": "guard_low_signal", "message": "No signal at 9"}]}
    path = f"**{JOBS}/{job['id']}"
    note = repeated(code="note", cause="A few rows.", severity="info")
    diagnosis = {**deployment.get(f"{JOBS}/{job['id']}/diagnosis"), "findings": [note, repeated()]}
    page.route(f"{path}/diagnosis", lambda route: route.fulfill(json=diagnosis))
    page.route(path, lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    lines = page.get_by_role("region", name="Findings").locator("summary > strong")
    expect(lines).to_have_text(["Groups have no signal.", "A few rows."])
    results = page.get_by_role("region", name="Results")
    results.get_by_role("link", name="Read 2 findings").click()
    expect(page.get_by_role("heading", name="Findings")).to_be_in_viewport()
    expect(page.get_by_text("Raise the temperature.").first).to_be_visible()
    expect(page.locator("summary").filter(has_text="Groups have no signal.")).to_be_focused()
    assert page.url.endswith(f"/#/jobs/{job['id']}")
    with page.expect_download() as found:
        results.get_by_role("button", name="Download adapter").click()
    assert found.value.suggested_filename.endswith(".tar.gz")


def test_the_failure_shown_above_is_not_repeated(page: Page, deployment: Deployment) -> None:
    failure = deployment.job("failed")["failure"]
    reported = deployment.get(f"{JOBS}/{deployment.jobs['failed']}/diagnosis")["findings"][0]
    assert set(failure["evidence"]) <= set(reported["evidence"])
    page.goto(f"/#/jobs/{deployment.jobs['failed']}")
    expect(page.get_by_role("region", name="Failure")).to_contain_text(failure["evidence"][0])
    listed = page.get_by_role("region", name="Failure").get_by_role("listitem")
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


def test_a_job_without_findings_has_no_list_of_them(page: Page, deployment: Deployment) -> None:
    job = {**deployment.job("first"), "warnings": []}
    found = {**deployment.get(f"{JOBS}/{job['id']}/diagnosis"), "findings": []}
    page.route(f"**{JOBS}/{job['id']}/diagnosis", lambda route: route.fulfill(json=found))
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    drawn(page, "Reward")
    expect(page.get_by_role("heading", name="Findings")).to_have_count(0)
    expect(page.get_by_role("heading", name="Failure")).to_have_count(0)


@pytest.mark.parametrize("name", ["failed", "supervised"])
def test_the_form_with_the_change_has_the_request_of_the_clone(
    page: Page, deployment: Deployment, name: str
) -> None:
    path = f"{JOBS}/{deployment.jobs[name]}"
    (finding, *_) = deployment.get(f"{path}/diagnosis")["findings"]
    page.goto(f"/#/jobs/{deployment.jobs[name]}")
    if name == "supervised":
        page.locator("summary").filter(has_text=finding["cause"]).click()
    page.get_by_role("link", name="Change more in the form").click()
    suggested = f"{finding['suggested']:.7f}".rstrip("0").rstrip(".")
    expect(page.get_by_text("with this change:")).to_contain_text(re.compile(rf"[A-Z][\w ]+ {suggested}\b"))
    body = json.loads(page.get_by_label("Request as JSON").input_value())
    checked = deployment.client.post(f"{JOBS}/validate", json=body).json()
    clone = deployment.client.post(f"{path}/clone", json=finding["patch"]).json()
    deployment.client.post(f"{JOBS}/{clone['id']}/cancel").raise_for_status()
    own = deployment.client.post(f"{JOBS}/validate", json={**body, "method": clone["method"]}).json()
    assert checked["problems"] == []
    assert checked["method"] == own["method"]


def test_held_out_rows_that_are_too_few_for_a_verdict_are_not_denied(
    page: Page, deployment: Deployment
) -> None:
    job = deployment.job("first")
    job["eval"]["verdict"] = {"difference": 0.0, "low": None, "high": None, "rows": 1, "text": "unknown"}
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    expect(page.locator(".next")).to_contain_text("Finished. Without a verdict on held-out rows,")


def test_a_result_that_got_worse_is_said_before_its_cause(page: Page, deployment: Deployment) -> None:
    job = deployment.job("first")
    job["eval"]["verdict"] = {"difference": -0.27, "low": -0.47, "high": -0.1, "rows": 30, "text": ""}
    found = {**deployment.get(f"{JOBS}/{job['id']}/diagnosis"), "findings": [repeated()]}
    page.route(f"**{JOBS}/{job['id']}/diagnosis", lambda route: route.fulfill(json=found))
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    expect(page.get_by_role("region", name="Results").locator(".next.bad strong")).to_have_text(
        "Worse on held-out rows than before training. Groups have no signal."
    )


def test_a_supervised_job_s_held_out_loss_leads_to_grpo_from_its_model(
    page: Page, deployment: Deployment
) -> None:
    job = {**deployment.job("supervised"), "fine_tuned_model": "ft:tiny:sums", "validation_split": 0.25}
    losses = ((0, 4.366), (40, 1.9), (60, 1.958))
    first, best, last = ({"step": step, "loss": loss} for step, loss in losses)
    job["eval"] = {"baseline": first, "best": best, "last": last}
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    results = page.get_by_role("region", name="Results")
    expect(results).to_contain_text("The held-out loss fell from 4.366 to 1.958, lowest at step 40.")
    results.get_by_role("link", name="Train it with GRPO").click()
    expect(page.get_by_label("Start from")).to_have_value("ft:tiny:sums")
    expect(page.get_by_label("Method")).to_have_value("reinforcement")
    expect(page.get_by_label("Training file")).to_have_value(job["training_file"])
    expect(page.get_by_label("Held-out part", exact=True)).to_have_value("25")
    expect(page.get_by_label("Seed")).to_have_value(str(job["seed"]))
    page.get_by_role("button", name="Move it to the field answer").click()
    expect(page.get_by_text("Fields for the grader: {{item.answer}}")).to_be_visible()
    made = page.get_by_label("Training file").input_value()
    first = deployment.client.get(f"/v1/files/{made}/content").text.splitlines()[0]
    assert json.loads(first) == {"messages": [{"role": "user", "content": "Hello 0"}], "answer": "Hi"}


def test_a_setting_s_label_begins_a_sentence_with_a_capital(page: Page, deployment: Deployment) -> None:
    cause = "The reward fell. learning_rate: 1 is too high. Lower learning_rate."
    path = f"**{JOBS}/{deployment.jobs['first']}/diagnosis"
    page.route(path, lambda route: route.fulfill(json={"findings": [repeated(cause=cause)]}))
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    line = page.get_by_role("region", name="Findings").locator("summary").filter(has_text="Lower")
    expect(line).to_contain_text("The reward fell. Learning rate: 1 is too high. Lower learning rate.")
