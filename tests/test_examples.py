"""Users copy the examples: every job file is accepted, and every row fits its job's grader."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.arithmetic import make_rows, supervised_rows, write_jsonl
from examples.chart import chart
from examples.decoding import accuracy
from examples.openenv_game.game import Game
from examples.openenv_game.learn import demonstrations, games
from examples.tiny_model import Family, make_model
from grpo_engine.config.job import Reinforcement, Supervised, hyperparameters_of
from grpo_engine.contract.records import Sample
from service.jobs.model.dataset import Problems, read_rows
from service.jobs.model.schemas import JobCreate

EXAMPLES = Path(__file__).parents[1] / "examples"
JOB_FILES = sorted(EXAMPLES.glob("jobs/*.json"))
DATASETS = ("training_file", "validation_file")


def load(path: Path) -> tuple[dict[str, Any], Any]:
    body = json.loads(path.read_text())
    return body, JobCreate.model_validate(body).method


def rows_of(path: Path, body: dict[str, Any]) -> list[dict[str, Any]]:
    files = [path.parent / body[name] for name in DATASETS if name in body]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_all_job_files_are_listed() -> None:
    assert [path.stem for path in JOB_FILES] == [
        "arithmetic_grpo",
        "first",
        "functions_code_tests",
        "gsm8k_qwen3_0.6b",
        "gsm8k_tools",
        "supervised",
    ]


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.stem)
def test_a_job_file_is_accepted_by_api_and_engine(path: Path) -> None:
    body, method = load(path)
    assert isinstance(method, Reinforcement | Supervised)
    assert body["method"]["type"] == method.type
    assert hyperparameters_of(method).total_steps(64) >= 1


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.stem)
def test_every_row_of_an_example_is_valid(path: Path) -> None:
    body, method = load(path)
    for name in DATASETS:
        if name in body:
            content = (path.parent / body[name]).read_bytes().splitlines(keepends=True)
            problems = Problems()
            rows = list(read_rows(content, file=name, kind=method.type, max_rows=1000, problems=problems))
            assert problems.found == []
            assert len(rows) == len(content)


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.stem)
def test_every_template_of_an_example_resolves_in_every_row(path: Path) -> None:
    body, method = load(path)
    if isinstance(method, Reinforcement):
        for row in rows_of(path, body):
            item = {key: value for key, value in row.items() if key not in ("messages", "tools")}
            assert method.reinforcement.grader.unresolved(item) == []


def test_the_gpu_job_has_groups_of_eight_and_rewards_answer_and_format() -> None:
    body, method = load(EXAMPLES / "jobs" / "gsm8k_qwen3_0.6b.json")
    assert body["model"] == "Qwen/Qwen3-0.6B"
    assert method.reinforcement.hyperparameters.group_size == 8
    item = {"answer": "14 * 6 = 84 muffins, and 84 + 5 = 89.\n#### 89"}
    texts = {
        "<reasoning>84 + 5</reasoning><answer>89</answer>": 1.0,
        "<answer>89</answer>": 0.9,
        "<reasoning>84 + 6</reasoning><answer>90</answer>": 0.1,
        "90": 0.0,
    }
    for text, reward in texts.items():
        score = method.reinforcement.grader.grade(Sample(output_text=text), item)
        assert score.reward == pytest.approx(reward), text


FUNCTIONS = """```python
def double(x): return 2 * x
def is_even(n): return n % 2 == 0
def initials(name): return "".join(word[0].upper() for word in name.split())
def largest(values): return max(values, default=None)
def count(text, letter): return text.lower().count(letter.lower())
def unique(values): return list(dict.fromkeys(values))
def fahrenheit(c): return c * 9 / 5 + 32
def flatten(rows): return [value for row in rows for value in row]
```"""


def test_the_code_job_rewards_only_right_functions() -> None:
    path = EXAMPLES / "jobs" / "functions_code_tests.json"
    body, method = load(path)
    grader = method.reinforcement.grader
    for row in rows_of(path, body):
        item = {"tests": row["tests"]}
        assert grader.grade(Sample(output_text=FUNCTIONS), item).reward == 1.0
        assert (
            grader.grade(Sample(output_text=FUNCTIONS.replace("return", "return 'no' or")), item).reward
            == 0.0
        )


def test_only_the_right_sum_is_rewarded() -> None:
    path = EXAMPLES / "jobs" / "arithmetic_grpo.json"
    body, method = load(path)
    for row in rows_of(path, body):
        item, answer = {"answer": row["answer"]}, row["answer"]
        grader = method.reinforcement.grader
        assert grader.grade(Sample(output_text=answer), item).reward == 1.0
        assert grader.grade(Sample(output_text=str(int(answer) + 1)), item).reward == 0.0


def test_held_out_sums_are_not_trained_on_and_depend_on_the_seed() -> None:
    train, held_out = make_rows(2000, 100, seed=5)
    asked = {row["messages"][0]["content"] for row in train}
    assert len(train) == 2000
    assert len(held_out) == 100
    assert asked.isdisjoint(row["messages"][0]["content"] for row in held_out)
    assert len(asked) == 80 * 8 - 100
    assert (train, held_out) == make_rows(2000, 100, seed=5)
    assert held_out != make_rows(2000, 100, seed=6)[1]


def test_too_many_held_out_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="25 sums cannot hold out 25"):
        make_rows(10, 25, left=range(5), right=range(5))


def test_supervised_rows_end_with_the_answer(tmp_path: Path) -> None:
    rows = supervised_rows(make_rows(3, 1, seed=1)[0])
    assert all(row["messages"][-1] == {"role": "assistant", "content": row["answer"]} for row in rows)
    read = write_jsonl(tmp_path / "rows.jsonl", rows).read_text().splitlines()
    assert [json.loads(line) for line in read] == rows


def test_a_tiny_model_may_be_read_by_the_user_of_a_container(tmp_path: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in make_model(tmp_path / "tiny").iterdir()}
    assert modes["model.safetensors"] == 0o644
    assert set(modes.values()) == {0o644}


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_a_tiny_model_has_one_token_per_character(family: Family, tmp_path: Path) -> None:
    folder = make_model(tmp_path / family, family=family, hidden=64, layers=1, seed=3)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "12+7="}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>12+7=<|assistant|>"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids.shape == (1, 7)
    assert tokenizer.decode(ids[0]) == text
    assert model(ids).logits.shape == (1, 7, len(tokenizer))
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_equal_seeds_make_equal_weights(tmp_path: Path) -> None:
    one, two, other = (
        make_model(tmp_path / name, hidden=32, layers=1, seed=seed) / "model.safetensors"
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    )
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != other.read_bytes()


def test_a_chart_has_one_column_per_value_or_mean() -> None:
    assert chart([0.0, 0.25, 0.5, 1.0], height=2).splitlines() == [
        " 1.0 │   █",
        " 0.0 │ ▄██",
        "     └────",
        "      1step 4",
    ]
    wide = chart([0.0, 1.0] * 50, width=10, height=1)
    assert wide.splitlines()[0] == " 0.0 │" + "▄" * 10


def test_accuracy_is_the_share_of_right_texts() -> None:
    rows, _ = make_rows(4, 1, seed=1)
    texts = [rows[0]["answer"], f" {rows[1]['answer']}\n", "", rows[3]["answer"] + "0"]
    assert accuracy(texts, rows) == 0.5


def test_sums_have_aligned_digits() -> None:
    train, held_out = make_rows(500, 100, seed=1)
    assert {len(row["messages"][0]["content"]) for row in [*train, *held_out]} == {5}
    assert {len(row["answer"]) for row in [*train, *held_out]} == {2}


def test_only_sums_with_a_carry_are_wrong_without_it() -> None:
    rows, _ = make_rows(600, 1, seed=1)
    missing = {"carry": 0, "none": 0}
    for row, shown in zip(rows, supervised_rows(rows, forgotten_carries=0.65, seed=2), strict=True):
        left, right = row["messages"][0]["content"].rstrip("=").split("+")
        kind = "carry" if int(left) % 10 + int(right) >= 10 else "none"
        off = int(row["answer"]) - int(shown["messages"][-1]["content"])
        assert off in (0, 10)
        missing[kind] += off // 10
        assert shown["answer"] == row["answer"]
    num_carries = sum(int(row["answer"]) % 10 < int(row["messages"][0]["content"][3]) for row in rows)
    assert missing["none"] == 0
    assert 0.55 < missing["carry"] / num_carries < 0.75


def test_the_jobs_with_a_task_by_name_are_accepted() -> None:
    guide = (EXAMPLES.parent / "docs" / "write-a-job" / "suites.md").read_text()
    bodies = [
        (EXAMPLES / "reasoning_gym" / "job.json").read_text(),
        guide.split("```json\n")[1].split("```")[0],
    ]
    for body in bodies:
        job = JobCreate.model_validate(json.loads(body))
        assert job.dataset is not None
        assert isinstance(job.method, Reinforcement)
        assert job.method.reinforcement.grader.type == job.dataset.type == "reasoning_gym"


def test_the_job_with_a_game_is_accepted_where_its_server_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1:8765")
    _, method = load(EXAMPLES / "openenv_game" / "job.json")
    assert method.reinforcement.grader.type == "environment"
    assert {row["environment"] for row in games(2)} == set(method.reinforcement.environments)


def test_only_the_middle_of_the_range_finds_every_digit_of_the_game() -> None:
    found = []
    for target in range(10):
        game, weak = Game(target), Game(target)
        while not game.is_over:
            game.guess(str(game.middle))
        for digit in range(4):
            weak.guess(str(digit))
        found.append((game.found, weak.found))
    assert found == [(True, True)] * 4 + [(True, False)] * 6
    assert Game(3).guess("three") == "not a digit"
    demonstrated = [row["messages"][-1]["content"] for row in demonstrations(200)]
    assert set(demonstrated) == set("0123456789")
