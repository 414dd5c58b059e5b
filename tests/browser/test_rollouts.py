"""The group view: the API's data, with models' output shown as text."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from service.platform.db import connect
from tests.browser.deployment import JOBS, Deployment, questions
from tests.service.job_samples import upload
from tests.service.rollouts.rollout_samples import add_group, scored

Shots = Callable[[Page, str], None]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e</p>"


def open_page(page: Page, job_id: str, query: str = "") -> None:
    page.goto(f"/#/jobs/{job_id}/rollouts{query}")
    expect(page.get_by_role("heading", name="Rollouts")).to_be_visible()


def groups_of(deployment: Deployment, job_id: str, **query: Any) -> list[dict[str, Any]]:
    return list(deployment.get(f"{JOBS}/{job_id}/rollouts", **query)["data"])


def shown_group(page: Page) -> str:
    """Id of the shown group, which is in the address."""
    page.wait_for_url(re.compile("group="))
    return page.url.split("group=")[1]


def signed(value: float) -> str:
    text = f"{abs(value):.2f}".rstrip("0").rstrip(".")
    return text if text == "0" else f"{'+' if value > 0 else '−'}{text}"


@pytest.fixture(scope="module")
def hostile(deployment: Deployment) -> str:
    """A waiting job with rollouts of two splits that contain markup."""
    job_id = deployment.create(upload(deployment.client, questions()), suffix="hostile")
    database = connect(deployment.api.settings)
    error = {"accuracy": {"code": "other_error", "message": HOSTILE}}
    completions = [
        scored(HOSTILE, None, 1.0, errors=error),
        scored("plain", -0.5, 0.0),
        scored("good", 1.0, 1.0),
    ]
    add_group(database, job_id, 1, 0, completions)
    add_group(database, job_id, 1, 0, [scored("held out", 1.0, 1.0)], split="validation", row=3)
    database.engine.dispose()
    return job_id


def test_bars_waterline_and_advantages_are_the_apis(page: Page, deployment: Deployment, shots: Shots) -> None:
    group = groups_of(deployment, deployment.jobs["first"], step=3)[0]
    open_page(page, deployment.jobs["first"], "?step=3")
    assert shown_group(page) == group["id"]
    columns = page.locator(".column")
    expect(columns).to_have_count(len(group["completions"]))
    zero = page.locator(".bars-plot .zero").bounding_box()
    best = max(one["reward"] or 0 for one in group["completions"])
    heights = []
    for at, one in enumerate(group["completions"]):
        column = columns.nth(at)
        if one["reward"] is None:
            expect(column).to_contain_text("error")
            continue
        expect(column.locator(".advantage")).to_have_text(signed(one["advantage"]))
        drawn = [float(column.get_attribute(f"data-{name}") or "nan") for name in ("reward", "advantage")]
        assert drawn == [one["reward"], one["advantage"]]
        box = column.locator(".fill").bounding_box()
        assert box is not None
        heights.append((one["reward"], box["height"]))
    tallest = max(height for _, height in heights)
    for reward, height in heights:
        assert height == pytest.approx(max(2, tallest * reward / best), abs=1)
    line = page.locator(".waterline").bounding_box()
    assert line is not None
    assert zero is not None
    assert zero["y"] - line["y"] == pytest.approx(tallest * group["mean_reward"] / best, abs=2)
    expect(page.locator(".waterline")).to_have_text(f"mean {group['mean_reward']:.4g}")
    shots(page, "rollouts")


def test_click_and_arrow_keys_show_a_completion_with_its_parts(page: Page, deployment: Deployment) -> None:
    group = groups_of(deployment, deployment.jobs["first"], step=3)[0]
    open_page(page, deployment.jobs["first"], "?step=3")
    page.locator(".column").nth(1).click()
    page.keyboard.press("ArrowRight")
    one = group["completions"][2]
    panel = page.locator(".completion")
    expect(panel.get_by_role("heading", name="Completion 3")).to_be_visible()
    expect(page.locator(".column").nth(2)).to_be_focused()
    expect(page.locator(".column").nth(2)).to_have_attribute("aria-pressed", "true")
    expect(panel.locator(".model-text")).to_have_text(one["text"])
    expect(panel.locator("dl")).to_contain_text(f"Tokens{one['num_tokens']}")
    for name, score in one["parts"].items():
        expect(panel.get_by_role("row", name=f"{name} {score:g}")).to_be_visible()


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
        expect(page.locator(".place")).to_have_text(f"Group 1 of {many}")
        first = answer["data"][0]
        assert shown_group(page) == first["id"], question
        shown = page.locator("details table tbody tr").all_text_contents()
        assert len(shown) == len(first["completions"])
        for row, one in zip(shown, first["completions"], strict=True):
            reward = "error" if one["reward"] is None else f"{one['reward']:.4g}"
            assert reward + signed(one["advantage"]) in row


def test_the_form_and_the_pager_work(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=3")
    page.get_by_role("slider").press("ArrowRight")
    second = groups_of(deployment, job_id, step=4)[1]
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
    expect(page.locator(".place")).to_have_text("Group 22 of 40+")


def test_hostile_text_is_text_and_negative_rewards_hang_below(page: Page, hostile: str, shots: Shots) -> None:
    open_page(page, hostile)
    page.locator(".column").first.click()
    expect(page.locator(".model-text")).to_have_text(HOSTILE, use_inner_text=False)
    expect(page.locator(".parts")).to_contain_text(HOSTILE)
    assert page.locator("#main img, #main script").count() == 0
    assert page.title().startswith("Rollouts")
    below = page.locator(".column").nth(1).locator(".fill").bounding_box()
    zero = page.locator(".bars-plot .zero").bounding_box()
    assert below is not None
    assert zero is not None
    assert below["y"] >= zero["y"] - 1
    shots(page, "rollouts-hostile")


def test_the_split_is_chosen(page: Page, hostile: str) -> None:
    open_page(page, hostile)
    page.get_by_label("Split").select_option("validation")
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


def test_another_grader_is_tried_and_its_rewards_are_marked(
    page: Page, deployment: Deployment, shots: Shots
) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=5")
    page.get_by_text("Test another grader").click()
    page.get_by_label("Grader (JSON)").fill("{")
    page.get_by_role("button", name="Rescore").click()
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    grader = {"type": "format", "name": "shape", "tags": ["answer"]}
    page.get_by_label("Grader (JSON)").fill(json.dumps(grader))
    page.get_by_role("button", name="Rescore").click()
    expect(page.locator(".column .rescored").first).to_be_visible()  # a tenant rescores one after another
    body = {"grader": grader, "from_step": 5, "to_step": 5}
    reported = deployment.client.post(f"{JOBS}/{job_id}/rollouts/rescore", json=body).json()
    changes = page.locator(".rescore .figures div").last
    expect(changes).to_contain_text(str(reported["summary"]["num_sign_changes"]))
    expect(page.locator(".column .rescored")).to_have_count(len(reported["data"][0]["completions"]))
    shots(page, "rollouts-rescore")


def test_the_best_answers_are_downloaded(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    open_page(page, job_id, "?step=all")
    with page.expect_download() as download:
        page.get_by_role("button", name="SFT").click()
    expected = deployment.client.get(f"{JOBS}/{job_id}/rollouts/sft.jsonl").text
    assert download.value.suggested_filename == f"{job_id}-sft.jsonl"
    assert download.value.path().read_text() == expected
