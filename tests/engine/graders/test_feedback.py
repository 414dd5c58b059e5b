"""Feedback of simple graders on completions without the full reward."""

from typing import Any

import pytest

from grpo_engine.graders.feedback import MAX_FEEDBACK_CHARACTERS
from tests.engine.graders.helpers import score

NUMERIC = {"type": "numeric", "reference": "{{item.answer}}"}


def check(operation: str) -> dict[str, Any]:
    return {
        "type": "string_check",
        "operation": operation,
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }


@pytest.mark.parametrize(
    ("grader", "text", "expected"),
    [
        (check("eq"), "Rome", 'expected "Paris", found "Rome"'),
        (check("ne"), "Paris", 'expected anything but "Paris", found "Paris"'),
        (check("like"), "a\nb", 'expected a text that contains "Paris", found "a\\nb"'),
        (
            check("ilike"),
            "",
            'expected a text that contains, in upper or lower case, "Paris", found ""',
        ),
        (check("eq"), "Paris", ""),
    ],
)
def test_string_check_feedback_states_expected_and_found_text(
    grader: dict[str, Any], text: str, expected: str
) -> None:
    assert score(grader, text, {"answer": "Paris"}).feedback == expected


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("so 7", "sum\n#### 1,234", "expected 1234, found 7"),
        ("so 1/3", "50%", "expected 50%, found 1/3"),
        ("no idea", "2.5", "expected 5/2, found no number"),
        ("1234", "1,234", ""),
    ],
)
def test_numeric_feedback_states_the_expected_number(text: str, answer: str, expected: str) -> None:
    assert score(NUMERIC, text, {"answer": answer}).feedback == expected


def test_numeric_feedback_names_the_tag() -> None:
    found = score({**NUMERIC, "tag": "answer"}, "<answer>8</answer>", {"answer": 9})
    assert found.feedback == "expected 9, found 8 in <answer>"


@pytest.mark.parametrize("text", ["x" * 100_000, "\n" * 100_000, "9" * 250])
@pytest.mark.parametrize("grader", [check("eq"), NUMERIC])
def test_feedback_is_bounded_whatever_the_completion_holds(grader: dict[str, Any], text: str) -> None:
    found = score(grader, text, {"answer": "8" * 250})
    assert found.reward == 0.0
    assert 0 < len(found.feedback) <= MAX_FEEDBACK_CHARACTERS


def test_an_unscorable_completion_has_an_error_and_no_feedback() -> None:
    found = score(NUMERIC, "5", {})
    assert (found.reward, found.feedback) == (None, "")
