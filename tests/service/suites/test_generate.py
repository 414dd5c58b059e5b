"""The child process that generates rows: its rows, its limits, its errors. The real suite runs."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from service.suites.child_process import generate
from service.suites.models import ReasoningGymDataset, SuiteError

MAX_BYTES = 2**26
REFUSALS = """
import io, json, sys
from service.suites.__main__ import write_rows
from service.suites.models import ReasoningGymDataset, SuiteError

found = []
for dataset in json.load(sys.stdin):
    try:
        write_rows(ReasoningGymDataset.model_validate(dataset), io.StringIO())
    except SuiteError as error:
        found.append((error.where, str(error)))
print(json.dumps(found))
"""
"""Refuses datasets as the child process does: one process for many, because its imports take a second."""


def dataset(task: str = "chain_sum", **more: Any) -> ReasoningGymDataset:
    return ReasoningGymDataset(type="reasoning_gym", task=task, **more)


def generated(task: str = "chain_sum", **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    with tempfile.TemporaryFile() as rows:
        report = generate(dataset(task, **more), rows, MAX_BYTES)
        rows.seek(0)
        return [json.loads(line) for line in rows.read().splitlines()], report


def refused(task: str = "chain_sum", max_bytes: int = MAX_BYTES, **more: Any) -> tuple[str, str]:
    with tempfile.TemporaryFile() as rows, pytest.raises(SuiteError) as caught:
        generate(dataset(task, **more), rows, max_bytes)
    return caught.value.where, str(caught.value)


def test_rows_have_question_answer_and_what_the_scorer_needs() -> None:
    config = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
    rows, report = generated(size=5, seed=0, config=config)
    assert rows[0] == {
        "messages": [
            {"role": "user", "content": "State the final answer to the following arithmetic problem: 0 - 4 ="}
        ],
        "answer": "-4",
        "reasoning_gym": {
            "task": "chain_sum",
            "config": config,
            "metadata": rows[0]["reasoning_gym"]["metadata"],
        },
    }
    assert len(rows) == 5
    assert report == {"checked": 5, "wrong": 0}


def test_equal_datasets_are_equal_and_other_seeds_share_no_row() -> None:
    one, again, other = (generated(size=40, seed=seed)[0] for seed in (1, 1, 2))
    assert one == again
    assert {row["answer"] + str(row["messages"]) for row in one}.isdisjoint(
        row["answer"] + str(row["messages"]) for row in other
    )


@pytest.fixture(scope="module")
def curriculum() -> list[dict[str, Any]]:
    """Rows of three levels, with a system prompt."""
    return generated(size=10, levels=3, config={"allow_negation": False}, system_prompt="Answer in a tag.")[0]


def test_rows_of_a_curriculum_have_levels_of_rising_difficulty(curriculum: list[dict[str, Any]]) -> None:
    assert [row["level"] for row in curriculum] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    terms = [row["reasoning_gym"]["metadata"]["num_terms"] for row in curriculum]
    assert terms == [2, 2, 2, 3, 3, 3, 4, 4, 4, 4]


def test_a_system_prompt_comes_first(curriculum: list[dict[str, Any]]) -> None:
    assert curriculum[0]["messages"][0] == {"role": "system", "content": "Answer in a tag."}


def test_own_answers_without_full_score_are_reported() -> None:
    rows, report = generated("graph_color", size=3)
    assert report == {"line": 1, "answer": rows[0]["answer"], "score": 0.0, "checked": 3, "wrong": 3}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"task": "chain_sums"}, "task", "'chain_sums' is unknown: did you mean chain_sum"),
    ({"task": "zzzz"}, "task", "'zzzz' is unknown: the tasks are ab, acre, "),
    ({"task": "composite"}, "task", "'composite' is unknown"),
    ({"config": {"zzzz": 3}}, "config.zzzz", "the options of chain_sum are allow_negation, max_digits, "),
    ({"config": {"max_term": 3}}, "config.max_term", "'max_term' is unknown: did you mean max_terms"),
    ({"config": {"max_terms": 1}}, "config.max_terms", "max_terms must be >= min_terms"),
    ({"config": {"max_digits": "many"}}, "config", "chain_sum refuses it: "),
    ({"config": {"seed": 3}}, "config.seed", "set dataset.seed"),
    ({"levels": 50}, "levels", "must be at most 11, the levels of chain_sum's curriculum"),
    ({"levels": 3, "config": {"max_terms": 3}}, "config.max_terms", "the levels set it"),
    ({"levels": 3, "size": 2}, "levels", "must be at most dataset.size, 2"),
]


def test_a_wrong_dataset_is_refused_at_its_field(tmp_path: Path) -> None:
    given = json.dumps([dataset(**more).model_dump() for more, _, _ in REFUSED])
    command = [sys.executable, "-P", "-c", REFUSALS]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, cwd=tmp_path)
    for (_, where, reason), (found, message) in zip(REFUSED, json.loads(done.stdout), strict=True):
        assert found == where
        assert reason in message


def test_a_task_of_the_library_whose_plots_are_left_out_has_right_answers() -> None:
    rows, report = generated("game_of_life", size=2, seed=0)
    assert (len(rows), report) == (2, {"checked": 2, "wrong": 0})


def test_an_option_that_names_a_file_reads_none_of_the_machine() -> None:
    assert (
        "not allowed" in refused("spell_backward", config={"data_file": "../../../../../../../etc/passwd"})[1]
    )


def test_generating_is_limited_in_memory_and_output() -> None:
    assert refused("count_primes", size=1, config={"max_n": 10**10}) == (
        "",
        "generating the rows needs more than 2 GiB of memory",
    )
    assert refused(size=100, max_bytes=1000) == ("", "the rows have more than 1,000 bytes")


def test_generating_is_limited_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.suites.child_process.LIMIT_SECONDS", 2)
    endless = {"max_terms": 10**9, "min_terms": 10**9}
    assert refused(size=1, config=endless) == (
        "",
        "generating the rows takes more than 2 s: lower size or difficulty",
    )
