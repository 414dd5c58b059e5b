"""`grpo grade`: rewards of answers to rows, without a job."""

import json
import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.cli.terminal.histogram import bars, bins_of
from tests.conftest import on_sqlite
from tests.service.cli.command import Grpo
from tests.service.embedded import run_shell

pytestmark = on_sqlite

ROOT = Path(__file__).parents[4]
NUMERIC = {"type": "numeric", "reference": "{{item.answer}}"}
FAILING = {
    "type": "python",
    "source": "def grade(sample, item):\n    return 1 / (item['answer'] - 4)\n",
}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}+{n}?", "answer": 2 * n}) + "\n" for n in range(1, 5)))
    return str(path)


def written(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_one_answer_is_graded_against_each_row(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    grader = written(tmp_path / "grader.json", NUMERIC)
    found = json.loads(grpo("grade", grader, "--rows", rows, "--answer", "It is 4.", "--json"))
    assert [(one["row"], one["reward"]) for one in found["data"]] == [(1, 0.0), (2, 1.0), (3, 0.0), (4, 0.0)]
    assert found["histogram"] == [{"low": 0, "high": 0, "count": 3}, {"low": 1, "high": 1, "count": 1}]
    assert (found["mean_reward"], found["num_unscored"]) == (0.25, 0)


def test_an_answer_may_insert_the_row_s_fields(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    grader = written(tmp_path / "grader.json", NUMERIC)
    lines = grpo("grade", grader, "--rows", rows, "--answer", "It is {{item.answer}}.").splitlines()
    assert lines[0].split() == ["row", "reward", "parts", "answer"]
    assert lines[1].split() == ["1", "1", "It", "is", "2."]
    assert lines[-2:] == ["4 rewards, mean 1", "1  " + "█" * 40 + " 4"]


def test_rows_of_parquet_are_graded_as_an_upload_stores_them(grpo: Grpo, tmp_path: Path) -> None:
    """Dates and decimals have no JSON form of their own."""
    grader = written(tmp_path / "grader.json", NUMERIC)
    table = pa.table({"prompt": ["Price?"], "answer": [Decimal("1.50")], "day": [date(2024, 1, 2)]})
    pq.write_table(table, tmp_path / "rows.parquet")
    given = ("--rows", str(tmp_path / "rows.parquet"), "--answer", "{{item.day}}: {{item.answer}}", "--json")
    (found,) = json.loads(grpo("grade", grader, *given))["data"]
    assert (found["answer"], found["reward"]) == ("2024-01-02: 1.5", 1.0)


def test_answers_of_a_file_belong_to_the_rows_in_order(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    grader = written(tmp_path / "grader.json", NUMERIC)
    answers = tmp_path / "answers.jsonl"
    answers.write_text('"\u2028 2"\n{"answer": "5"}\n')
    given = ("grade", grader, "--rows", rows, "--answers", str(answers), "--json")
    found = json.loads(grpo(*given, "--limit", "2"))
    assert [(one["answer"], one["reward"]) for one in found["data"]] == [("\u2028 2", 1.0), ("5", 0.0)]
    code, error = grpo.error(*given)
    assert (code, error["message"]) == (1, f"{answers} has 2 answers for 4 rows")
    assert error["hint"] == "--limit 2 grades fewer rows"


def test_rows_that_cannot_be_scored_show_the_traceback_and_exit_with_1(
    grpo: Grpo, rows: str, tmp_path: Path
) -> None:
    grader = written(tmp_path / "grader.json", FAILING)
    done = grpo.run("grade", grader, "--rows", rows, "--answer", "x")
    assert done.returncode == 1
    assert "1 × python: python_grader_runtime_error, first in row 2:" in done.stdout
    assert 'File "<grader>", line 2, in grade' in done.stdout
    assert "ZeroDivisionError" in done.stdout
    assert "3 rewards, mean 0.0833" in done.stdout
    assert done.stderr.startswith("Error: 1 of 4 answers cannot be scored [code=not_scorable]")


def test_what_a_grader_prints_is_shown_for_the_first_rows(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    source = "def grade(sample, item):\n    print('seen', item['answer'])\n    return 1\n"
    grader = written(tmp_path / "grader.json", {"type": "python", "source": source})
    shown = grpo("grade", grader, "--rows", rows, "--answer", "x")
    assert "row 1, python printed:\nseen 2\n" in shown
    assert ("seen 6" in shown, "seen 8" in shown) == (True, False)


def test_parts_of_a_grader_are_shown_beside_its_reward(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    tags = {"type": "format", "tags": ["answer"]}
    multi = {"type": "multi", "graders": {"right": NUMERIC, "shape": tags}}
    grader = written(tmp_path / "grader.json", multi | {"calculate_output": "0.8 * right + 0.2 * shape"})
    shown = grpo("grade", grader, "--rows", rows, "--answer", "<answer>4</answer>", "--limit", "2")
    assert "right=0 shape=1" in shown.splitlines()[1]
    assert "right=1 shape=1" in shown.splitlines()[2]


def test_the_grader_of_a_job_file_is_taken(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    job = {"method": {"type": "reinforcement", "reinforcement": {"grader": NUMERIC}}}
    path = written(tmp_path / "job.json", job)
    assert "mean 0.25" in grpo("grade", path, "--rows", rows, "--answer", "8")
    del job["method"]["reinforcement"]["grader"]
    code, error = grpo.error("grade", written(tmp_path / "no.json", job), "--rows", rows, "--json")
    assert (code, "is a job without a grader" in error["message"]) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "give --answer TEXT or --answers FILE"),
        (("--answer", "{{item.solution}}"), "--answer, row 1: "),
        (("--answer", "{{item.answer"), "--answer: "),
    ],
)
def test_an_unusable_answer_is_one_clear_error(
    grpo: Grpo, rows: str, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    grader = written(tmp_path / "grader.json", NUMERIC)
    code, error = grpo.error("grade", grader, "--rows", rows, *arguments, "--json")
    assert code == 1
    assert error["message"].startswith(reason)


def test_an_answer_with_an_unknown_field_is_refused_with_the_fields_of_the_row(
    grpo: Grpo, rows: str, tmp_path: Path
) -> None:
    grader = written(tmp_path / "grader.json", NUMERIC)
    _, error = grpo.error("grade", grader, "--rows", rows, "--answer", "{{item.solution}}", "--json")
    assert error["hint"] == "the fields of this row are prompt, answer"


def test_an_invalid_grader_is_the_service_s_error(grpo: Grpo, rows: str, tmp_path: Path) -> None:
    grader = written(tmp_path / "grader.json", {"type": "numeric"})
    code, error = grpo.error("grade", grader, "--rows", rows, "--answer", "x", "--json")
    assert (code, error["code"], error["param"]) == (1, "missing_field", "grader.reference")


def test_the_commands_of_the_guide_grade_reference_answers_highest(
    grpo: Grpo, rows: str, tmp_path: Path
) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/write-a-job/graders.md").read_text(), re.DOTALL)
    written(tmp_path / "grader.json", NUMERIC)
    (tmp_path / "answers.jsonl").write_text('"2"\n"4"\n{"answer": "6"}\n"9"\n')
    shown = run_shell(block, tmp_path, grpo.shell_environment)
    assert re.findall(r"rewards, mean (\S+)", shown) == ["1", "0", "0.75"]


def test_a_histogram_has_a_bin_for_each_of_few_values_and_ten_of_many() -> None:
    assert bins_of([1.0, 0.0, 1.0]) == [(0.0, 0.0, 1), (1.0, 1.0, 2)]
    many = bins_of([n / 16 for n in range(161)])
    assert [count for *_, count in many] == [16] * 9 + [17]
    assert (many[0][0], many[-1][1]) == (0.0, 10.0)
    assert list(bars([(0.0, 0.0, 0), (1.0, 1.0, 80)])) == ["0   0", "1  " + "█" * 40 + " 80"]
    assert list(bars([])) == []
