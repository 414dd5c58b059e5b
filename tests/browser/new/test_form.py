"""The new-job page: from an upload to a finished job, problems at their fields, a probe, a copy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PHONE, log_in, profile, watched
from tests.browser.deployment import Deployment, questions, reinforcement
from tests.service.job_samples import MODEL, upload

RUN_MS = 60_000
"""Time for a worker to finish something on a busy machine."""
JOBS = "/v1/fine_tuning/jobs"
PROBES = "/v1/fine_tuning/probes"


def open_with(page: Page, rows: Path) -> None:
    """The page with an uploaded dataset, whose first row is shown."""
    page.goto("/#/new")
    page.get_by_label("Upload a file").set_input_files(rows)
    expect(page.get_by_text("sums.jsonl uploaded.")).to_be_visible()
    expect(page.get_by_text("What is 0 + 0?")).to_be_visible()


def request_shown(page: Page) -> Any:
    """Waits until the form is shown."""
    return json.loads(page.get_by_label("Request as JSON").input_value())


def test_from_an_upload_to_a_succeeded_job(
    page: Page, deployment: Deployment, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    open_with(page, rows)
    page.get_by_label("Steps", exact=True).fill("12")
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="Ready to start")).to_be_visible()
    expect(page.get_by_text("8 rows, 12 steps. No problems found.")).to_be_visible()
    shots(page, "new-checked")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/#/jobs/ftjob-*")
    job_id = page.url.rpartition("/")[2]
    expect(page.get_by_text("succeeded").first).to_be_visible(timeout=RUN_MS)
    page.get_by_role("link", name="Configuration").click()
    steps = page.get_by_role("row", name="Steps")
    expect(steps).to_have_text("Steps1212")
    job = deployment.get(f"{JOBS}/{job_id}")
    assert (job["status"], job["progress"]["step"]) == ("succeeded", 12)
    assert job["estimate"]["steps"] == job["actual"]["steps"] == 12


def test_a_wrong_template_is_reported_at_its_field(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    rows.write_bytes(15 * rows.read_bytes())  # 120 rows, of which the service lists 100
    open_with(page, rows)
    page.get_by_label("Reference").fill("{{item.answr}}")
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    field = page.get_by_label("Reference")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(
        "{{item.NAME}} is replaced with that field of the row. Training file, row 1 › answr: the grader's "
        "{{item.answr}} is not in this row, which has answer, faults. And 119 more."
    )
    for similar in ("(and 14 similar)", "(and 104 similar)"):  # rows with other fields are another problem
        expect(page.get_by_text(similar)).to_be_visible()
    shots(page, "new-problem")
    page.get_by_role("link", name="Reference (Training file, row 1 › answr)").click()
    expect(field).to_be_focused()
    field.fill("{{item.answer}}")
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_on_a_phone_the_buttons_are_in_view_and_lead_to_their_result(page: Page) -> None:
    page.set_viewport_size(PHONE)
    page.goto("/#/new")
    expect(page.get_by_role("button", name="Start")).to_be_in_viewport()
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("Training file Choose or upload a file.")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Start")).to_be_in_viewport()


def test_without_a_file_the_form_explains_what_to_do(page: Page) -> None:
    page.goto("/#/new")
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("Training file Choose or upload a file.")).to_be_visible()
    expect(page.get_by_label("Training file")).to_have_accessible_description("Choose or upload a file.")


def test_a_number_out_of_range_is_reported_at_its_field(
    page: Page, rows: Path, expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    open_with(page, rows)
    page.get_by_label("Completions per prompt").fill("1")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_label("Completions per prompt")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("heading", name="1 problem to fix")).to_be_visible()


def test_a_check_whose_answer_is_cut_off_can_be_repeated(page: Page, rows: Path) -> None:
    open_with(page, rows)
    page.get_by_label("Max completion tokens").fill("16")
    page.route("**/validate", lambda route: route.fulfill(body='{"valid": '), times=1)
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert").get_by_text("No connection to the service")).to_be_visible()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("8 rows, 50 steps")).to_be_visible()


def test_a_probe_shows_its_verdict_and_completions(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    open_with(page, rows)
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Probe").click()
    expect(page.get_by_role("heading", name="Can GRPO learn here?")).to_be_visible(timeout=RUN_MS)
    expect(page.get_by_text("16 of 32 completions are right")).to_be_visible()
    page.get_by_text("Samples (").click()
    expect(page.get_by_text("What is 12 + 7?").first).to_be_visible()
    shots(page, "new-probed")


def test_a_failed_probe_s_log_is_one_click_away(page: Page, rows: Path) -> None:
    rows.write_bytes(questions(fail_at=2))
    open_with(page, rows)
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Probe").click()
    expect(page.get_by_role("heading", name="No probe result")).to_be_visible(timeout=RUN_MS)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download log").click()
    assert saved.value.path().read_text() == "fake engine starts\n"


def test_past_probes_are_listed_and_can_be_opened(page: Page, deployment: Deployment) -> None:
    body = {
        "model": MODEL,
        "training_file": upload(deployment.client, questions()),
        "method": reinforcement(),
    }
    created = deployment.client.post(PROBES, json={**body, "probe": {"prompts": 3}}).json()
    page.goto("/#/new")
    page.get_by_text("Previous probes").click()
    page.get_by_role("button", name=f"{MODEL}, 3 prompts").click()
    expect(page.get_by_role("heading", name="Can GRPO learn here?")).to_be_visible(timeout=RUN_MS)
    expect(page.get_by_text("Samples (")).to_be_visible()
    sentence = deployment.get(f"{PROBES}/{created['id']}")["result"]["sentence"]
    expect(page.locator(".past li").first).to_contain_text(sentence)


def test_an_empty_or_failed_list_of_past_probes_is_reported(
    browser: Browser, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("500")
    probes = "**/v1/fine_tuning/probes?*"
    with profile(browser, deployment) as context, watched(context, expected_errors) as page:
        log_in(context, deployment.new_key("newcomer"))
        page.route(
            probes, lambda route: route.fulfill(status=500, json={"error": {"message": "out of order"}})
        )
        page.goto("/#/new")
        page.get_by_text("Previous probes").click()
        expect(page.get_by_text("out of order")).to_be_visible()
        page.unroute(probes)
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("heading", name="No probe yet")).to_be_visible()


def test_every_rule_and_method_of_the_form_is_accepted(page: Page, rows: Path) -> None:
    open_with(page, rows)
    page.get_by_label("Max completion tokens").fill("16")
    ready = page.get_by_role("heading", name="Ready to start")
    for rule in ("math", "string_check", "text_similarity", "format", "python", "numeric"):
        page.get_by_label("Grader", exact=True).select_option(rule)
        assert request_shown(page)["method"]["reinforcement"]["grader"]["type"] == rule
        page.get_by_role("button", name="Check").click()
        expect(ready).to_be_visible(timeout=RUN_MS)
        expect(page.get_by_text("The request has changed since this result.")).to_be_hidden()
    page.get_by_label("Method").select_option("supervised")
    expect(page.get_by_text("The request has changed since this result.")).to_be_visible()
    expect(page.get_by_role("button", name="Probe")).to_be_hidden()
    expect(page.get_by_label("Epochs")).to_have_value("3")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("the last message must have the role assistant").first).to_be_visible()


def test_a_rule_uses_a_field_of_the_rows_until_the_user_changes_it(page: Page, tmp_path: Path) -> None:
    others = tmp_path / "sums.jsonl"
    prompts = [[{"role": "user", "content": f"What is {n} + 0?"}] for n in range(8)]
    rows = [{"messages": turns, "tags": ["a"], "verdict": str(n)} for n, turns in enumerate(prompts)]
    others.write_text("".join(json.dumps(row) + "\n" for row in rows))
    open_with(page, others)
    rule, ready = page.get_by_label("Grader", exact=True), page.get_by_text("No problems found.")
    expect(page.get_by_label("Reference")).to_have_value("{{item.verdict}}")
    page.get_by_label("Method").select_option("training_free")
    expect(page.get_by_label("Reference")).to_have_value("{{item.verdict}}")
    page.get_by_label("Method").select_option("reinforcement")
    for kind in ("python", "string_check"):
        rule.select_option(kind)
        page.get_by_label("Max completion tokens").fill("16")
        page.get_by_role("button", name="Check").click()
        expect(ready).to_be_visible(timeout=RUN_MS)
    page.get_by_label("Reference").fill("{{item.verdict}}!")
    others.write_text(others.read_text().replace("0 + 0", "1 + 1"))
    page.get_by_label("Upload a file").set_input_files(others)
    expect(page.get_by_text("What is 1 + 1?")).to_be_visible()
    expect(page.get_by_label("Reference")).to_have_value("{{item.verdict}}!")


def test_the_json_and_the_form_are_the_same_request(page: Page) -> None:
    page.goto("/#/new")
    page.get_by_label("KL coefficient (β)").fill("0.1")
    assert request_shown(page)["method"]["reinforcement"]["hyperparameters"]["beta"] == 0.1
    body = request_shown(page)
    body["method"]["reinforcement"]["hyperparameters"]["group_size"] = 16
    body["method"]["reinforcement"]["grader"] = {"type": "format", "tags": ["a", "b"]}
    page.get_by_text("Request as JSON").click()
    page.get_by_label("Request as JSON").fill(str(body).replace("'", '"'))
    expect(page.get_by_label("Completions per prompt")).to_have_value("16")
    expect(page.get_by_label("Tags in order")).to_have_value("a, b")
    page.get_by_label("Request as JSON").fill("{")
    expect(page.get_by_text("Not used yet")).to_be_visible()


def test_invalid_json_blocks_the_request(page: Page, rows: Path) -> None:
    open_with(page, rows)
    page.get_by_text("JSON, all options").click()
    area = page.get_by_label("Grader as JSON")
    area.fill('{"type": "math", "reference": "{{item.answer}}",}')
    page.get_by_text("JSON, all options").click()
    for name in ("Check", "Probe", "Start"):
        page.get_by_role("button", name=name).click()
        found = page.get_by_role("alert").filter(has_text="1 problem to fix")
        expect(found).to_contain_text("Grader as JSON invalid JSON; it is not used")
        expect(area).to_be_focused()
    area.fill('{"type": "math", "reference": "{{item.answer}}"}')
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("No problems found.")).to_be_visible(timeout=RUN_MS)
    assert request_shown(page)["method"]["reinforcement"]["grader"]["type"] == "math"


def test_a_draft_is_kept_across_pages(page: Page) -> None:
    page.goto("/#/new")
    page.get_by_label("Suffix").fill("my-try")
    page.goto("/#/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.goto("/#/new")
    expect(page.get_by_label("Suffix")).to_have_value("my-try")
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_label("Suffix")).to_have_value("")


def test_a_copy_starts_with_the_job_s_own_request(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(
        upload(deployment.client, questions()),
        suffix="original",
        metadata={"team": "maths"},
        method=reinforcement(beta=0.02, n_steps=3),
    )
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("link", name="Run again…").click()
    expect(page.get_by_label("Suffix")).to_have_value("original")
    expect(page.get_by_label("KL coefficient (β)")).to_have_value("0.02")
    body = request_shown(page)
    assert body["method"]["reinforcement"]["grader"]["type"] == "multi"
    assert body["metadata"] == {"team": "maths"}
    page.get_by_label("Prompts per step").fill("2")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="Ready to start")).to_be_visible()
