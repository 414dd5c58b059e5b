"""The grader bench: examples, errors shown at their field, answers without a score."""

import json
import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.conftest import TOO_WIDE
from tests.browser.deployment import JOBS, Deployment

EXAMPLES = {
    "Number": "1",
    "Exact text": "1",
    "Tags in order": "1",
    "Correct and well-formed": "1",
    "Similar text": "0.6154",
    "Custom Python": "1",
}


def test_every_example_scores(page: Page, shots: Callable[[Page, str], None]) -> None:
    page.goto("/#/grader")
    result = page.get_by_role("region", name="Result")
    for name, reward in EXAMPLES.items():
        page.get_by_label("Start from").select_option(name)
        expect(result).to_contain_text("Not run yet")
        page.get_by_role("button", name="Run").click()
        expect(result.locator("dd").first).to_have_text(reward)
    page.get_by_label("Start from").select_option("Correct and well-formed")
    page.get_by_label("Model answer").fill("41, I think")
    page.get_by_role("button", name="Run").click()
    expect(result.get_by_role("row", name="format 0")).to_be_visible()
    shots(page, "grader")


def test_a_result_out_of_view_is_scrolled_into_view(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 400})
    page.goto("/#/grader")
    result = page.get_by_role("region", name="Result")
    page.get_by_role("button", name="Run").scroll_into_view_if_needed()
    expect(result.get_by_role("heading")).not_to_be_in_viewport()
    page.get_by_role("button", name="Run").click()
    expect(result.get_by_role("heading", name="Scored")).to_be_in_viewport()


def test_a_job_s_own_rule_is_tried_on_a_completion_of_its_last_step(
    page: Page, deployment: Deployment
) -> None:
    path = f"{JOBS}/{deployment.jobs['first']}"
    group = deployment.get(f"{path}/rollouts", split="train", step=40, limit=1)["data"][0]
    page.goto(f"/#/grader?job={deployment.jobs['first']}")
    asked = re.escape(group["messages"][-1]["content"][:40])
    expect(page.get_by_label("Start from")).to_have_text(re.compile(f"^The job first-try: {asked}"))
    expect(page.get_by_label("Model answer")).to_have_value(group["completions"][0]["text"])
    item = json.loads(page.get_by_label("Dataset row (JSON)").input_value())
    assert item == group["reference"]


def test_without_rollouts_a_job_s_rule_is_tried_on_the_first_row_of_its_dataset(
    page: Page, deployment: Deployment
) -> None:
    page.route("**/rollouts?*", lambda route: route.fulfill(json={"data": [], "has_more": False}))
    page.goto(f"/#/grader?job={deployment.jobs['first']}")
    expect(page.get_by_label("Start from")).to_have_text(re.compile("^The job first-try"))
    page.get_by_label("Model answer").fill("<answer>0</answer>")
    page.get_by_role("button", name="Run").click()
    result = page.get_by_role("region", name="Result")
    expect(result.locator("dd").first).to_have_text("1")
    expect(result.get_by_role("row", name="format 1")).to_be_visible()


def test_what_a_grader_prints_is_shown_as_text(page: Page) -> None:
    page.goto("/#/grader")
    source = "def grade(sample, item):\n    print('<b>', sample['output_text'])\n    return 1\n"
    page.get_by_label("Grader (JSON)").fill(json.dumps({"type": "python", "name": "own", "source": source}))
    page.get_by_label("Model answer").fill("41")
    page.get_by_role("button", name="Run").click()
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_text("own printed")).to_be_visible()
    expect(result.locator("pre")).to_have_text("<b> 41")


def test_a_run_of_code_names_the_failing_test_and_what_it_got(
    page: Page, shots: Callable[[Page, str], None]
) -> None:
    page.goto("/#/grader")
    grader = {"type": "code_tests", "name": "code", "tests": "{{item.tests}}", "timeout_seconds": 3}
    row = {"tests": [{"call": "f", "args": [n], "expected": 4} for n in (2, 3, 0)]}
    page.get_by_label("Grader (JSON)").fill(json.dumps(grader))
    page.get_by_label("Dataset row").fill(json.dumps(row))
    page.get_by_label("Model answer").fill(
        "import time\ndef f(n):\n    if not n: time.sleep(60)\n    return n * n"
    )
    page.get_by_role("button", name="Run").click()
    checks = page.get_by_role("region", name="Result").get_by_role("listitem")
    expect(checks).to_have_text(
        [
            "passed: test 1 of 3: f(2)",
            "failed: test 2 of 3: f(3)got 9expected 4",
            "failed: test 3 of 3: f(0)expected 4no result within 3 s: the code may loop",
        ]
    )
    shots(page, "grader-code")


def test_a_traceback_keeps_its_lines_and_stays_in_its_panel(page: Page) -> None:
    source = f"def grade(sample, item):\n    return item['{'x' * 200}']\n"
    page.goto("/#/grader")
    page.get_by_label("Grader (JSON)").fill(json.dumps({"type": "python", "source": source}))
    page.get_by_role("button", name="Run").click()
    reported = page.get_by_role("region", name="Result").get_by_role("listitem")
    expect(reported).to_contain_text("KeyError")
    assert len(reported.inner_text().splitlines()) > 3
    assert page.evaluate(TOO_WIDE) <= 0


def test_an_answer_that_cannot_be_scored_shows_the_reason(
    page: Page, shots: Callable[[Page, str], None]
) -> None:
    page.goto("/#/grader")
    page.get_by_label("Start from").select_option("Number")
    page.get_by_label("Dataset row").fill("{}")
    page.get_by_role("button", name="Run").click()
    alert = page.get_by_role("region", name="Result").get_by_role("alert")
    expect(alert).to_contain_text("Not scorable")
    expect(page.get_by_role("region", name="Result")).to_contain_text("item.answer")
    shots(page, "grader-unscorable")


def test_a_grader_s_problems_are_shown_at_the_grader(page: Page, expected_errors: list[str]) -> None:
    expected_errors.append("400")
    page.goto("/#/grader")
    grader = page.get_by_label("Grader (JSON)")
    grader.fill("{oops")
    page.get_by_role("button", name="Run").click()
    expect(grader).to_be_focused()
    expect(page.locator("#grader-problem")).to_contain_text("This is not JSON")
    grader.fill(json.dumps({"type": "numeric", "name": "n", "reference": "1", "tolerence": 1}))
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#grader-problem")).to_contain_text("tolerence")
    expect(grader).to_have_attribute("aria-invalid", "true")
    grader.fill(json.dumps({"type": "numeric", "name": "n", "reference": "1"}))
    page.get_by_role("button", name="Check only").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("Valid grader")
    expect(page.locator("#grader-problem")).to_be_empty()
