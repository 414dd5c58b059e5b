"""The split of one file into training and held-out rows: exact, reproducible, by prompt."""

import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from grpo_engine.config.validation_split import ValidationSplit, held_out_rows, prompt_digest


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": f"{n}?"}], "answer": n} for n in range(first, count)]


def split(given: list[dict[str, Any]], wanted: float, seed: int = 7) -> list[int]:
    return sorted(held_out_rows([prompt_digest(row) for row in given], wanted, seed))


@pytest.mark.parametrize(("wanted", "count"), [(0.1, 20), (0.5, 100), (1, 1), (199, 199), (0.0126, 3)])
def test_the_number_of_held_out_rows_is_exact_if_no_prompt_repeats(wanted: float, count: int) -> None:
    assert len(split(rows(200), wanted)) == count


def test_the_same_rows_and_seed_give_the_same_split_in_every_process() -> None:
    code = (
        "from tests.engine.config.test_validation_split import rows, split\n"
        "print(split(rows(300), 0.1), split(rows(300), 0.1, 8))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{split(rows(300), 0.1)} {split(rows(300), 0.1, 8)}\n"}
    assert split(rows(300), 0.1) != split(rows(300), 0.1, 8)


def test_the_same_prompt_is_never_on_both_sides() -> None:
    given = [{**row, "answer": n} for n, row in enumerate(rows(40) * 5)]
    for seed in range(20):
        held_out = split(given, 0.2, seed)
        prompts = {prompt_digest(given[index]) for index in held_out}
        assert len(held_out) == 40
        assert not prompts & {prompt_digest(row) for n, row in enumerate(given) if n not in held_out}


def test_a_prompt_with_more_rows_than_wanted_is_trained_on() -> None:
    given = rows(1) * 90 + rows(11, first=1)
    for seed in range(20):
        assert split(given, 5, seed)[0] >= 90
        assert len(split(given, 5, seed)) == 5
    assert split(rows(1) * 10, 0.5) == []


def test_new_rows_leave_most_prompts_on_their_side() -> None:
    before, after = split(rows(200), 20), split(rows(210), 20)
    assert len(set(before) & set(after)) >= 15


def test_a_prompt_is_its_conversation_without_the_answer_and_the_other_fields() -> None:
    turn = {"role": "user", "content": "2+2?"}
    parts = {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}
    same: list[dict[str, Any]] = [
        {"messages": [turn]},
        {"messages": [turn, {"role": "assistant", "content": "4"}], "answer": "4"},
        {"messages": [parts], "tools": [{"name": "add"}]},
    ]
    assert len({prompt_digest(row) for row in same}) == 1
    others: list[dict[str, Any]] = [
        {"prompt": "2+2?"},
        {"messages": [{"role": "system", "content": "Think."}, turn]},
    ]
    assert len({prompt_digest(row) for row in [same[0], *others]}) == 3
    assert prompt_digest({"prompt": "a", "completion": "b"}) == prompt_digest({"prompt": "a"})


@pytest.mark.parametrize("value", [0, 1.5, -3, float("nan"), float("inf"), 10**400, True, "0.1"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ValidationSplit).validate_python(value, strict=True)


def test_a_whole_number_is_a_number_of_rows() -> None:
    found = TypeAdapter(ValidationSplit).validate_python(10.0)
    assert (found, type(found)) == (10, int)
