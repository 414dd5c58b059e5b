"""The new-job form: more settings, and a grader on rows of the training file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.new.test_form import context, deployment, open_with, request_shown, rows

__all__ = ["context", "deployment", "rows"]


def test_more_settings_are_part_of_the_request(page: Page, rows: Path) -> None:
    open_with(page, rows)
    page.get_by_text("More settings").click()
    page.get_by_label("Recipe").select_option("dapo")
    page.get_by_label("Temperature", exact=True).fill("0.8")
    page.get_by_label("Evaluate every").fill("5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Metadata").fill("team=maths, data=v2")
    page.get_by_label("Name").fill("Second try")
    body = request_shown(page)
    chosen: dict[str, Any] = {"recipe": "dapo", "temperature": 0.8, "eval_interval": 5}
    assert chosen.items() <= body["method"]["reinforcement"]["hyperparameters"].items()
    assert (body["seed"], body["name"]) == (7, "Second try")
    assert body["metadata"] == {"team": "maths", "data": "v2"}


def test_the_grader_is_tested_on_rows_of_the_file(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    open_with(page, rows)
    page.get_by_text("Test this grader on rows").click()
    page.get_by_role("button", name="Test on rows").click()
    num_rows = len(rows.read_text().splitlines())
    expect(page.get_by_text(f"Mean reward 1 over {num_rows} rows.")).to_be_visible()
    histogram = page.get_by_role("img", name="Rows by reward")
    expect(histogram).to_have_accessible_name(f"Rows by reward: {num_rows} from 0.9 to 1")
    shots(page, "new-trial")
    page.get_by_label("Answer", exact=True).fill("no number")
    page.get_by_role("button", name="Test on rows").click()
    expect(page.get_by_text(f"Mean reward 0 over {num_rows} rows.")).to_be_visible()


def test_rows_that_cannot_be_scored_show_the_graders_error(page: Page, rows: Path) -> None:
    open_with(page, rows)
    page.get_by_label("Grader", exact=True).select_option("python")
    page.get_by_label("Code").fill("def grade(sample, item):\n    raise ValueError('no ' + item['answer'])\n")
    page.get_by_text("Test this grader on rows").click()
    page.get_by_role("button", name="Test on rows").click()
    expect(page.get_by_text("rows cannot be scored.")).to_be_visible()
    expect(page.locator(".trial-rows li").first).to_contain_text("ValueError")
