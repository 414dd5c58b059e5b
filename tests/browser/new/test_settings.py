"""The new-job form: more settings, and a grader on rows of the training file."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.deployment import JOBS, Deployment, questions
from tests.browser.new.test_code_editor import write
from tests.browser.new.test_form import RUN_MS, open_with, request_shown
from tests.service.job_samples import jsonl, row, upload


def test_more_settings_are_part_of_the_request(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    open_with(page, rows)
    page.get_by_text("More settings").click()
    page.get_by_label("Recipe").select_option("dapo")
    page.get_by_label("Temperature", exact=True).fill("0.8")
    page.get_by_label("Evaluate every").fill("5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Metadata key 1").fill("team")
    page.get_by_label("Metadata value 1").fill("maths, physics")
    page.get_by_label("Metadata key 2").fill("data")
    page.get_by_label("Metadata value 2").fill("v2")
    page.get_by_label("Groups without signal: action").select_option("pause")
    page.get_by_label("Groups without signal: threshold").fill("0.9")
    page.get_by_label("Reward plateau: action").select_option("Off")
    page.get_by_label("KL divergence: steps").fill("3")
    page.get_by_label("Name").fill("Second try")
    body = request_shown(page)
    chosen: dict[str, Any] = {"recipe": "dapo", "temperature": 0.8, "eval_interval": 5}
    assert chosen.items() <= body["method"]["reinforcement"]["hyperparameters"].items()
    assert (body["seed"], body["name"]) == (7, "Second try")
    assert body["metadata"] == {"team": "maths, physics", "data": "v2"}
    guards = body["method"]["reinforcement"]["hyperparameters"]["guards"]
    assert guards[:2] == [
        {"watch": "kl", "patience": 3},
        {"watch": "no_signal", "action": "pause", "threshold": 0.9},
    ]
    assert "reward_plateau" not in [guard["watch"] for guard in guards]
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name=re.compile("^Ready"))).to_be_visible(timeout=RUN_MS)
    shots(page, "new-settings")
    page.get_by_role("button", name="Reset").click()
    page.get_by_text("More settings").click()
    expect(page.get_by_label("Metadata key 1")).to_have_value("")
    expect(page.get_by_label("Reward plateau: action")).to_have_value("warn")


def test_a_rule_may_have_several_guards(page: Page, rows: Path, shots: Callable[[Page, str], None]) -> None:
    open_with(page, rows)
    page.get_by_text("More settings").click()
    page.get_by_role("button", name="KL divergence: add a guard").click()
    expect(page.get_by_label("KL divergence 2: action")).to_be_focused()
    page.get_by_label("KL divergence 2: threshold").fill("30")
    guards = request_shown(page)["method"]["reinforcement"]["hyperparameters"]["guards"]
    assert guards[:3] == [
        {"watch": "kl"},
        {"watch": "kl", "action": "stop", "threshold": 30},
        {"watch": "no_signal"},
    ]
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name=re.compile("^Ready"))).to_be_visible(timeout=RUN_MS)
    shots(page, "new-guards")
    page.goto("/#/jobs")
    page.goto("/#/new")
    page.get_by_text("More settings").click()
    expect(page.get_by_label("KL divergence 2: threshold")).to_have_value("30")
    page.get_by_label("KL divergence 2: action").select_option("Off")
    assert "guards" not in request_shown(page)["method"]["reinforcement"]["hyperparameters"]


def test_all_weights_may_be_trained_instead_of_an_adapter(page: Page, rows: Path) -> None:
    open_with(page, rows)
    weights, rank = page.get_by_label("Trained weights"), page.get_by_label("LoRA rank")
    expect(weights).to_have_value("adapter")
    page.get_by_label("Learning rate").fill("0.001")
    weights.select_option("full")
    expect(rank).to_be_hidden()
    expect(weights).to_have_accessible_description(re.compile("^Takes several times the memory"))
    chosen = request_shown(page)["method"]["reinforcement"]["hyperparameters"]
    assert (chosen["lora"], chosen["learning_rate"]) == ("full", 1e-5)
    weights.select_option("adapter")
    expect(rank).to_have_value("16")


def many_questions(path: Path, num_rows: int) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"What is {n} + 0?"}], "answer": str(n)}
        for n in range(num_rows)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_part_of_the_training_file_is_held_out_unless_the_user_says_otherwise(
    page: Page, rows: Path, shots: Callable[[Page, str], None]
) -> None:
    held_out = page.get_by_label("Held-out rows", exact=True)
    open_with(page, rows)
    expect(held_out).to_have_accessible_description(re.compile("^8 rows are too few to hold some out"))
    assert "validation_split" not in request_shown(page)
    for num_rows, split in ((40, 10), (200, 50), (500, 0.1), (5010, 500)):
        many_questions(rows, num_rows)
        page.get_by_label("Upload a file").set_input_files(rows)
        expect(
            page.get_by_text(re.compile(rf"uploaded\. {num_rows:,} rows".replace(",", r"\s")))
        ).to_be_visible()
        expect(held_out).to_have_value("split")
        assert request_shown(page)["validation_split"] == split
    shots(page, "new-held-out")
    held_out.select_option("none")
    expect(held_out).to_have_accessible_description("Without them there is no verdict on unseen rows.")
    many_questions(rows, 300)
    page.get_by_label("Upload a file").set_input_files(rows)
    expect(page.get_by_text("sums.jsonl uploaded. 300 rows.")).to_be_visible()
    assert "validation_split" not in request_shown(page)


@pytest.mark.parametrize("held_out", [{}, {"validation_split": 12}])
def test_a_copy_keeps_the_held_out_rows_of_its_job(
    page: Page, deployment: Deployment, rows: Path, held_out: dict[str, int]
) -> None:
    many_questions(rows, 60)
    job_id = deployment.create(upload(deployment.client, rows.read_bytes()), **held_out)
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    page.goto(f"/#/new?from={job_id}")
    expect(page.get_by_text("What is 0 + 0?")).to_be_visible()
    body = request_shown(page)
    assert {name: body[name] for name in body if name.startswith("validation")} == held_out


def test_a_probe_s_advice_is_taken_into_the_form(
    page: Page, tmp_path: Path, shots: Callable[[Page, str], None]
) -> None:
    rows = tmp_path / "sums.jsonl"
    rows.write_bytes(questions(step_seconds=0, probed={"groups_with_signal": 0, "passed": 3}))
    open_with(page, rows)
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Probe").click()
    page.get_by_role("button", name="Apply the advice").click(timeout=RUN_MS)
    changes = "Changed: Temperature default → 1.2; Completions per prompt 8 → 16."
    expect(page.get_by_text(changes)).to_be_visible()
    expect(page.get_by_label("Completions per prompt")).to_have_value("16")
    expect(page.get_by_label("Temperature", exact=True)).to_have_value("1.2")
    shots(page, "new-advice")


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


def test_a_field_whose_name_has_a_space_is_written_in_brackets(page: Page, rows: Path) -> None:
    given = [row(f"What is {n} + {n}?", str(2 * n)) for n in range(8)]
    rows.write_bytes(jsonl(*({"messages": one["messages"], "Lösung (€)": one["answer"]} for one in given)))
    open_with(page, rows)
    path = '{{item["Lösung (€)"]}}'
    expect(page.get_by_label("Reference")).to_have_value(path)
    expect(page.get_by_text("Fields for the grader:")).to_contain_text(path)
    page.get_by_text("Test this grader on rows").click()
    expect(page.get_by_label("Answer", exact=True)).to_have_value(path)
    page.get_by_role("button", name="Test on rows").click()
    expect(page.get_by_text("Mean reward 1 over 8 rows.")).to_be_visible()


def test_rows_that_cannot_be_scored_show_the_graders_error(page: Page, rows: Path) -> None:
    open_with(page, rows)
    page.get_by_label("Grader", exact=True).select_option("python")
    write(page, "def grade(sample, item):\n    raise ValueError('no ' + item['answer'])\n")
    page.get_by_text("Test this grader on rows").click()
    page.get_by_role("button", name="Test on rows").click()
    expect(page.get_by_text("rows cannot be scored.")).to_be_visible()
    expect(page.locator(".trial-rows li").first).to_contain_text("ValueError")


def test_the_initial_python_grader_scores_rows_whose_answer_is_a_number(page: Page, rows: Path) -> None:
    rows.write_bytes(jsonl(*({**row(f"What is {n} + {n}?"), "answer": 2 * n} for n in range(8))))
    open_with(page, rows)
    page.get_by_label("Grader", exact=True).select_option("python")
    page.get_by_text("Test this grader on rows").click()
    page.get_by_role("button", name="Test on rows").click()
    expect(page.get_by_text("Mean reward 1 over 8 rows.")).to_be_visible()


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("Maths, answer in tags", "multi"),
        ("Exact text", "string_check"),
        ("Code with tests", "code_tests"),
        ("Classification", "string_check"),
        ("Output format", "format"),
        ("Maths with a Python tool", "numeric"),
    ],
)
def test_a_task_fills_in_a_request_that_is_accepted(page: Page, tmp_path: Path, task: str, kind: str) -> None:
    tests = [{"call": "double", "args": [1], "expected": 2}]
    sums = [{"role": "user", "content": f"What is {n} + 0?"} for n in range(8)]
    rows = [{"messages": [each], "answer": str(n), "tests": tests} for n, each in enumerate(sums)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    open_with(page, tmp_path / "sums.jsonl")
    page.get_by_label("Task", exact=True).select_option(task)
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    # the tiny model's chat template shows no tools, which is a warning
    expect(page.get_by_role("heading", name=re.compile("^Ready"))).to_be_visible(timeout=RUN_MS)
    method = request_shown(page)["method"]["reinforcement"]
    assert method["grader"]["type"] == kind
    assert ("tools" in method) == (task == "Maths with a Python tool")


def test_a_task_uses_the_rows_own_field_before_and_after_the_upload(page: Page, tmp_path: Path) -> None:
    def labelled(name: str) -> Path:
        path = tmp_path / "sums.jsonl"
        sums = ([{"role": "user", "content": f"What is {n} + 0?"}] for n in range(8))
        path.write_text(
            "".join(json.dumps({"messages": each, "id": "x", name: "even"}) + "\n" for each in sums)
        )
        return path

    open_with(page, labelled("category"))
    page.get_by_label("Task", exact=True).select_option("Classification")
    expect(page.get_by_label("Reference")).to_have_value("{{item.category}}")
    page.get_by_label("Upload a file").set_input_files(labelled("label"))
    expect(page.get_by_label("Reference")).to_have_value("{{item.label}}")
    expect(page.get_by_label("Task", exact=True)).to_have_value("classification")


def test_another_grader_ends_a_task_and_takes_its_settings_back(page: Page, rows: Path) -> None:
    open_with(page, rows)
    task, grader = page.get_by_label("Task", exact=True), page.get_by_label("Grader", exact=True)
    longest, group = page.get_by_label("Max completion tokens"), page.get_by_label("Completions per prompt")
    task.select_option("Classification")
    expect(longest).to_have_value("16")
    group.fill("4")
    grader.select_option("math")
    expect(task).to_have_value("")
    expect(longest).to_have_value("256")
    expect(group).to_have_value("4")
    task.select_option("Maths with a Python tool")
    assert "tools" in request_shown(page)["method"]["reinforcement"]
    grader.select_option("python")
    expect(task).to_have_value("")
    method = request_shown(page)["method"]["reinforcement"]
    assert "tools" not in method
    assert "max_turns" not in method["hyperparameters"]


def test_a_reference_of_text_is_graded_as_exact_text_in_short_completions(
    page: Page, tmp_path: Path, shots: Callable[[Page, str], None]
) -> None:
    path = tmp_path / "sums.jsonl"
    asked = [{"role": "user", "content": "What is 0 + 0?"}]
    grader = page.get_by_label("Grader", exact=True)
    for answer, kind, tokens in (
        ("It is 0.\n#### 0", "numeric", 256),
        ("nought", "string_check", 64),
        ("1,200", "numeric", 256),
    ):
        path.write_text(json.dumps({"messages": asked, "answer": answer}) + "\n")
        open_with(page, path)
        expect(grader).to_have_value(kind)
        settings = request_shown(page)["method"]["reinforcement"]["hyperparameters"]
        assert settings["max_completion_tokens"] == tokens
        page.get_by_role("button", name="Reset").click()
        page.goto("/#/jobs")
    page.goto("/#/new")
    grader.select_option("text_similarity")
    measure = page.get_by_label("Measure")
    expect(measure).to_have_accessible_description(re.compile("^The longest sequence of words"))
    measure.select_option("fuzzy_match")
    expect(measure).to_have_accessible_description(
        "Similar characters: tolerates typing errors. Score from 0 to 1."
    )
    shots(page, "new-measure")
