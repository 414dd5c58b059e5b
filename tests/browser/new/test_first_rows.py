"""The new-job page: without a model yet, rows for supervised training, several graders, long references."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.browser.deployment import JOBS, Deployment
from tests.browser.new.test_form import RUN_MS, open_with, request_shown
from tests.service.job_samples import upload


def test_several_graders_with_python_parts_are_edited_in_the_form(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    open_with(page, rows)
    page.get_by_label("Grader", exact=True).select_option("multi")
    page.get_by_role("button", name="Add a grader").click()
    part = page.get_by_role("group", name="part3")
    expect(part.get_by_label("Grader", exact=True)).to_be_focused()
    part.get_by_label("Grader", exact=True).select_option("numeric")
    expect(part.get_by_label("Reference")).to_have_value("{{item.answer}}")
    expect(page.get_by_label("Formula")).to_have_value("0.8 * correct + 0.2 * style + part3")
    page.get_by_role("button", name="Remove correct").click()
    page.get_by_label("Formula").fill("0.7 * part3 + 0.3 * style")
    grader = request_shown(page)["method"]["reinforcement"]["grader"]
    assert {name: each["type"] for name, each in grader["graders"].items()} == {
        "style": "python",
        "part3": "numeric",
    }
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="Ready to start")).to_be_visible(timeout=RUN_MS)
    shots(page, "new-multi")


def test_a_csv_file_gets_an_answer_column_for_supervised_training(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("question,note,label\n" + "".join(f"What is {n} + 0?,a,{n}\n" for n in range(8)))
    page.goto("/#/new")
    page.get_by_label("Method").select_option("supervised")
    page.get_by_label("Upload a file").set_input_files(path)
    expect(page.get_by_label("Answer column")).to_have_value("label")
    expect(page.get_by_label("First row as JSON")).to_contain_text('"role": "assistant"')
    page.get_by_role("dialog").get_by_role("button", name="Upload").click()
    expect(page.get_by_text("sums-imitate.jsonl uploaded. 8 rows.")).to_be_visible()
    expect(page.get_by_text("Answer to imitate:")).to_be_visible()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name=re.compile("^Ready"))).to_be_visible(timeout=RUN_MS)


def test_rows_for_grpo_get_their_answers_to_imitate_from_a_field(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    open_with(page, rows)
    page.get_by_label("Method").select_option("supervised")
    expect(page.get_by_text("These rows have no answer to imitate.")).to_be_visible()
    expect(page.get_by_label("Field with the answer")).to_have_value("answer")
    shots(page, "new-imitate")
    page.get_by_role("button", name="Add it to each row").click()
    expect(page.get_by_text("Answer to imitate:")).to_be_visible()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name=re.compile("^Ready"))).to_be_visible(timeout=RUN_MS)
    imitated = page.get_by_label("Training file").input_value()
    job = {"id": "ftjob-1", "model": "tiny", "fine_tuned_model": "ft:tiny:sums", "seed": 7}
    job |= {"created_at": 1, "training_file": imitated}
    page.route(f"**{JOBS}/ftjob-1", lambda route: route.fulfill(json=job))
    page.goto("/#/new?after=ftjob-1")
    expect(page.get_by_label("Training file").locator("option:checked")).to_have_text(
        re.compile(r"^sums\.jsonl")
    )


def test_a_first_row_that_arrives_after_a_check_leaves_its_result(
    page: Page, deployment: Deployment, rows: Path
) -> None:
    training = upload(deployment.client, rows.read_bytes())
    page.goto("/#/new")
    page.get_by_role("button", name="Reset").click()
    held: list[Route] = []
    page.route("**/content", lambda route: held.append(route))
    with page.expect_request("**/content"):
        page.get_by_label("Training file").select_option(training)
    page.get_by_label("Held-out rows", exact=True).select_option("file")
    page.get_by_role("button", name="Check").click()
    problem = page.locator("#new-validation_file-problem")
    expect(problem).to_have_text("Choose or upload a file.")
    for route in held:
        route.continue_()
    expect(page.get_by_text("First row")).to_be_visible()
    expect(problem).to_have_text("Choose or upload a file.")
    expect(page.get_by_text("The request has changed since this result.")).to_be_hidden()


def test_a_long_reference_is_compared_by_similarity_also_after_another_method(page: Page, rows: Path) -> None:
    answer = "Water falls as rain, and the sun takes it up again."
    rows.write_text(f'{{"prompt": "Why?", "answer": "{answer}"}}\n' * 8)
    page.goto("/#/new")
    page.get_by_label("Upload a file").set_input_files(rows)
    grader = page.get_by_label("Grader", exact=True)
    expect(grader).to_have_value("text_similarity")
    page.get_by_label("Method").select_option("supervised")
    page.get_by_label("Method").select_option("reinforcement")
    expect(grader).to_have_value("text_similarity")


def test_without_a_model_the_form_appears_once_there_is_one(page: Page) -> None:
    def none(route: Route) -> None:
        route.fulfill(json={"object": "list", "data": []})

    page.route("**/v1/models", none)
    page.goto("/#/new")
    expect(page.get_by_role("heading", name="No model yet")).to_be_visible()
    expect(page.get_by_role("button", name="Reset")).to_be_hidden()
    page.unroute("**/v1/models")
    expect(page.get_by_label("Start from")).to_be_visible()
    expect(page.get_by_role("button", name="Reset")).to_be_visible()


def test_rows_may_come_from_a_task_of_reasoning_gym(page: Page, shots: Callable[[Page, str], None]) -> None:
    page.goto("/#/new")
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Rows from").select_option("suite")
    expect(page.get_by_label("Training file")).to_be_hidden()
    page.get_by_role("button", name="Check").click()
    task = page.get_by_label("Reasoning Gym task", exact=True)
    expect(task).to_have_accessible_description(re.compile("Choose a task.$"))
    task.select_option("chain_sum", timeout=RUN_MS)
    page.get_by_label("Number of rows").fill("20")
    request = request_shown(page)
    assert request["dataset"] == {"type": "reasoning_gym", "task": "chain_sum", "size": 20}
    assert "training_file" not in request
    assert request["method"]["reinforcement"]["grader"] == {"type": "reasoning_gym"}
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name=re.compile("^Ready"))).to_be_visible(timeout=RUN_MS)
    shots(page, "new-suite")
    page.get_by_label("Rows from").select_option("file")
    expect(page.get_by_label("Training file")).to_be_visible()
    assert "dataset" not in request_shown(page)
