"""The selection of groups: steps, filters, jumps, exports."""

import json
import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.browser.deployment import JOBS, Deployment
from tests.browser.rollouts.pages import groups_of, open_page, shown_group, signed


def test_a_step_and_a_group_are_jumped_to(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=3")
    shown_group(page)
    page.get_by_label("Step number").fill("27")
    page.keyboard.press("Enter")
    wanted = groups_of(deployment, job_id, step=27)
    page.wait_for_url(re.compile(wanted[0]["id"]))
    page.get_by_label("Group", exact=True).fill("3")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(wanted[2]["id"]))
    expect(page.locator(".place")).to_have_text("of 4")
    page.get_by_label("Group", exact=True).fill("99")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(wanted[3]["id"]))


def test_arrow_keys_turn_over_groups_and_with_shift_steps(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=3")
    shown_group(page)
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(groups_of(deployment, job_id, step=3)[1]["id"]))
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile(groups_of(deployment, job_id, step=3)[0]["id"]))
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_url(re.compile(groups_of(deployment, job_id, step=4)[0]["id"]))


QUESTIONS: list[dict[str, Any]] = [
    {"step": 5},
    {"step": 2, "filter": "truncated"},
    {"step": "all", "filter": "no_signal"},
    {"step": "all", "filter": "grader_error"},
    {"step": "all", "filter": "best"},
    {"step": 7, "filter": "worst"},
    {"step": 6, "fired": "correct", "not_fired": "format"},
]


def test_filters_show_the_api_s_groups_and_the_table_their_numbers(
    page: Page, deployment: Deployment
) -> None:
    job_id = deployment.jobs["first"]
    for question in QUESTIONS:
        selection = {name: value for name, value in question.items() if value != "all"}
        answer = deployment.get(f"{JOBS}/{job_id}/rollouts", split="train", **selection)
        open_page(page, job_id, "?" + "&".join(f"{name}={value}" for name, value in question.items()))
        if not answer["data"]:
            expect(page.get_by_text("No matching group")).to_be_visible()
            continue
        many = f"{len(answer['data'])}{'+' if answer['has_more'] else ''}"
        many = many if len(question) > 1 else "4"
        expect(page.locator(".place")).to_have_text(f"of {many}")
        expect(page.get_by_label("Group", exact=True)).to_have_value("1")
        first = answer["data"][0]
        assert shown_group(page) == first["id"], question
        shown = page.locator("details table tbody tr").all_text_contents()
        assert len(shown) == len(first["completions"])
        for row, one in zip(shown, first["completions"], strict=True):
            reward = "error" if one["reward"] is None else f"{one['reward']:.4g}"
            assert reward + signed(one["advantage"]) in row
            assert row.endswith(one["text"])


def test_the_form_and_the_pager_work(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=3")
    page.get_by_role("slider").press("ArrowRight")
    second = groups_of(deployment, job_id, step=4)[1]
    expect(page.get_by_label("Step number")).to_have_value("4")
    expect(page.locator(".figures").first).to_contain_text("Step4")
    page.get_by_role("button", name="Next group").click()
    page.wait_for_url(re.compile(second["id"]))
    page.get_by_label("Show").select_option("worst")
    worst = groups_of(deployment, job_id, step=4, filter="worst")[0]
    page.wait_for_url(re.compile(f"filter=worst.*{worst['id']}"))
    page.get_by_label("All steps").check()
    everywhere = groups_of(deployment, job_id, filter="worst")[0]
    page.wait_for_url(re.compile(f"step=all.*{everywhere['id']}"))


def test_all_groups_can_be_visited_across_pages(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=all")
    wanted = [group["id"] for group in groups_of(deployment, job_id, limit=22)]
    for _ in range(21):
        page.get_by_role("button", name="Next group").click()
    page.wait_for_url(re.compile(wanted[21] + "$"))
    expect(page.get_by_label("Group", exact=True)).to_have_value("22")
    expect(page.locator(".place")).to_have_text("of 160")


def test_the_split_is_chosen(page: Page, hostile: str) -> None:
    open_page(page, hostile)
    page.get_by_label("Split").select_option("validation")
    expect(page.get_by_role("article")).to_have_count(1)
    expect(page.locator(".model-text")).to_have_text("held out")
    expect(page.get_by_text("so there is no comparison")).to_be_visible()


def test_a_running_job_offers_its_newest_step(page: Page, deployment: Deployment) -> None:
    open_page(page, deployment.jobs["running"], "?step=2")
    newest = page.locator(".newest")
    expect(newest).to_have_class(re.compile("fresh"))
    step = int((newest.text_content() or "").removeprefix("Newest: "))
    newest.click()
    expect(page.locator(".figures").first).not_to_contain_text(re.compile("^Step2D"))
    assert int(page.url.split("step=")[1].split("&")[0]) >= step


def test_a_job_without_rollouts_shows_an_empty_page(page: Page, deployment: Deployment) -> None:
    page.goto(f"/#/jobs/{deployment.jobs['queued']}")
    page.get_by_role("link", name="Rollouts").click()
    expect(page.get_by_text("No rollouts yet")).to_be_visible()


def test_a_failure_is_shown_and_can_be_retried(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("500")
    error = {"error": {"message": "It is broken.", "type": "server_error", "param": None, "code": "x"}}
    pattern = re.compile(r"/rollouts\?")

    def refuse(route: Route) -> None:
        route.fulfill(status=500, body=json.dumps(error))

    page.route(pattern, refuse)
    open_page(page, deployment.jobs["first"], "?step=3")
    expect(page.get_by_role("alert")).to_contain_text("It is broken.")
    page.unroute(pattern)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".column").first).to_be_visible()


def test_the_best_answers_are_downloaded(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=all")
    with page.expect_download() as download:
        page.get_by_role("button", name="SFT").click()
    expected = deployment.client.get(f"{JOBS}/{job_id}/rollouts/sft.jsonl").text
    assert download.value.suggested_filename == f"{job_id}-sft.jsonl"
    assert download.value.path().read_text() == expected


CUT_OFF = """() => {
  const whole = window.fetch;
  const body = () => new ReadableStream({ pull: (stream) => stream.error(new TypeError("network error")) });
  window.fetch = (...given) =>
    String(given[0]).includes("sft.jsonl") ? new Response(body()) : whole(...given);
}"""
"""The response to an export ends with what fetch throws when the connection is lost."""


def test_an_export_that_is_cut_off_is_reported(own_page: Page, deployment: Deployment) -> None:
    open_page(own_page, deployment.jobs["first"], "?step=all")
    shown_group(own_page)
    own_page.evaluate(CUT_OFF)
    own_page.get_by_role("button", name="SFT").click()
    expect(own_page.get_by_role("alert")).to_contain_text("No connection to the service")
