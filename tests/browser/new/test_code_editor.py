"""The editor of Python graders: completion, errors at their line, the keyboard, and a browser without it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.deployment import Deployment
from tests.browser.new.test_form import RUN_MS, open_with, request_shown

ACE = "/dashboard/vendor/ace/"
OFFERS = ".ace_autocomplete .ace_line"
FAILED_LINE = ".ace_gutter-cell.ace_error"
HEAD = "def grade(sample, item):\n"


def python_grader(page: Page, rows: Path) -> None:
    """The form with an empty editor that has the focus."""
    open_with(page, rows)
    page.get_by_label("Grader", exact=True).select_option("python")
    expect(page.locator(".ace_content").first).to_be_visible()
    write(page, "")


def write(page: Page, source: str) -> None:
    """Replaces the code as a paste does, without the editor's own indentation."""
    page.get_by_label("Code, Cursor at row").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(source)


def source_of(page: Page) -> str:
    return str(request_shown(page)["method"]["reinforcement"]["grader"]["source"])


def test_a_grader_is_typed_completed_tried_and_submitted(
    page: Page, deployment: Deployment, rows: Path, accessible: Callable[[Page], None]
) -> None:
    python_grader(page, rows)
    page.keyboard.type('def grade(sample, item):\nright = item["a')
    expect(page.locator(OFFERS)).to_contain_text(["answer"])
    accessible(page)
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.type('\nreturn float(right in sample["')
    expect(page.locator(OFFERS).first).to_contain_text("text of the completion")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    head, *lines = source_of(page).rstrip().splitlines()
    assert head == "def grade(sample, item):"
    assert lines == ['    right = item["answer"]', '    return float(right in sample["output_text"])']
    page.get_by_text("Test this grader on rows").click()
    page.get_by_role("button", name="Test on rows").click()
    expect(page.get_by_text("Mean reward 1 over 8 rows.")).to_be_visible(timeout=RUN_MS)
    page.get_by_label("Steps", exact=True).fill("2")
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/#/jobs/ftjob-*")
    job = deployment.get(f"/v1/fine_tuning/jobs/{page.url.rpartition('/')[2]}")
    assert job["method"]["reinforcement"]["grader"]["source"].splitlines()[1:3] == lines


def test_an_exception_of_the_trial_marks_its_line(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    python_grader(page, rows)
    write(page, f'{HEAD}    words = sample["output_text"].split()\n    return item["missing"]\n')
    page.get_by_text("Test this grader on rows").click()
    page.get_by_role("button", name="Test on rows").click()
    expect(page.locator(FAILED_LINE)).to_have_text("3", timeout=RUN_MS)
    expect(page.locator(".failed-line")).to_have_count(1)
    shots(page, "new-code")
    page.get_by_label("Code, Cursor at row").focus()
    page.keyboard.type(" ")
    expect(page.locator(".failed-line")).to_have_count(0)


def test_a_syntax_error_marks_its_line_and_the_field(
    page: Page, rows: Path, expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    python_grader(page, rows)
    write(page, f"{HEAD}    return (1\n")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="1 problem to fix")).to_be_visible()
    code = page.get_by_label("Code, Cursor at row")
    expect(code).to_have_attribute("aria-invalid", "true")
    expect(page.locator(FAILED_LINE)).to_have_text("2")
    page.get_by_role("link", name="Code").click()
    expect(code).to_be_focused()


def test_tab_indents_and_leaves_the_editor_after_escape(page: Page, rows: Path) -> None:
    python_grader(page, rows)
    code = page.get_by_label("Code, Cursor at row")
    expect(code).to_have_accessible_description(
        "Runs in a sandbox without network. An exception is an error, not a score of 0. "
        "Ctrl+Space completes. Escape, then Tab leaves the editor."
    )
    page.keyboard.press("Tab")
    assert source_of(page) == "    "
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_label("Grader", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    expect(code).to_be_focused()
    page.keyboard.press("Tab")
    assert source_of(page) == " " * 8


def test_without_the_editor_the_code_is_a_text_area(
    own_page: Page, rows: Path, expected_errors: list[str]
) -> None:
    expected_errors.append("ERR_FAILED")
    own_page.route(f"**{ACE}*", lambda route: route.abort())
    open_with(own_page, rows)
    own_page.get_by_label("Grader", exact=True).select_option("python")
    source = f'{HEAD}    return float(item["answer"] in sample["output_text"])\n'
    own_page.get_by_label("Code").fill(source)
    assert source_of(own_page) == source
    own_page.get_by_label("Max completion tokens").fill("16")
    own_page.get_by_role("button", name="Check").click()
    expect(own_page.get_by_text("No problems found.")).to_be_visible(timeout=RUN_MS)


def test_the_editor_is_loaded_only_where_it_is_shown(own_page: Page) -> None:
    loaded: list[str] = []
    own_page.on("request", lambda request: loaded.append(request.url) if ACE in request.url else None)
    own_page.goto("/#/new")
    own_page.get_by_role("button", name="Reset").click()
    expect(own_page.get_by_label("Reference")).to_be_visible()
    assert not loaded
    own_page.get_by_label("Grader", exact=True).select_option("python")
    expect(own_page.locator(".ace_content").first).to_be_visible()
    names = sorted(url.rpartition("/")[2] for url in loaded)
    assert names == ["ace.js", "ext-language_tools.js", "mode-python.js"]


def test_code_and_json_of_the_bench_are_the_same_grader(
    page: Page, shots: Callable[[Page, str], None], expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    page.goto("/#/grader")
    text = page.get_by_label("Grader (JSON)")
    text.fill(json.dumps({"type": "python", "name": "mine", "source": f"{HEAD}    return item['n']\n"}))
    page.get_by_label("Dataset row").fill('{"count": 2}')
    expect(page.locator(".ace_line").nth(1)).to_have_text("    return item['n']")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(FAILED_LINE)).to_have_text("2", timeout=RUN_MS)
    shots(page, "grader-python")
    write(page, f"{HEAD}    return (")
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#code-problem")).to_have_text("line 2: '(' was never closed.")
    write(page, f"{HEAD}    return item[")
    page.keyboard.press("Control+Space")
    expect(page.locator(OFFERS)).to_contain_text(["count"])
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.insert_text("]")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("region", name="Result").locator("dd").first).to_have_text("2")
    assert json.loads(text.input_value())["source"] == f'{HEAD}    return item["count"]'
    text.fill('{"type": "numeric", "reference": "1"}')
    expect(page.get_by_label("Code, Cursor at row")).to_be_hidden()


@pytest.mark.parametrize("name", ["ace.js", "mode-python.js"])
def test_the_editor_s_files_are_cached(deployment: Deployment, name: str) -> None:
    answer = deployment.client.get(ACE + name)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=604800")


@pytest.mark.parametrize("name", ["theme-monokai.js", "worker-base.js", "../widget.js", "%2e%2e/widget.js"])
def test_other_files_of_the_editor_s_package_are_not_served(deployment: Deployment, name: str) -> None:
    assert deployment.client.get(ACE + name).status_code == 404
