from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_engine.graders.numbers import last_number
from tests.engine.graders.helpers import read, refusal, reward, score

GRADER: dict[str, Any] = {"type": "numeric", "reference": "{{item.answer}}"}


def last(text: str, tag: str | None = None) -> Fraction | None:
    found = last_number(text, tag=tag)
    return None if found is None else found.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 42.", 42),
        ("first 1, then 2, then 3", 3),
        ("1,234", 1234),
        ("1,234,567.89", Fraction("1234567.89")),
        ("1,2345", 2345),
        ("$6.00", 6),
        ("$ 1,000", 1000),
        (r"\$6.50", Fraction("6.5")),
        ("€5 and £7", 7),
        ("3/4", Fraction(3, 4)),
        ("3 / 4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("-7", -7),
        ("−7", -7),
        ("x=-5", -5),
        ("-$5", -5),
        ("$-5", -5),
        ("10-3", 3),
        ("10 - 3", 3),
        ("(a)-3", 3),
        ("+8", 8),
        ("- 5 apples", 5),
        (".5", Fraction(1, 2)),
        ("0.10", Fraction(1, 10)),
        ("5...", 5),
        ("1e3", 1000),
        ("1.5E-2", Fraction(3, 200)),
        ("6.02 × 10^23", 602 * 10**21),
        (r"3 \times 10^{-2}", Fraction(3, 100)),
        ("2*10**3", 2000),
        ("50%", 50),
        (r"12.5\%", Fraction(25, 2)),
        (r"\boxed{42}", 42),
        (r"It is \boxed{42}, because 17 is prime.", 42),
        (r"\boxed{1} or rather \boxed{2}", 2),
        (r"\boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"\boxed{-\dfrac{1}{2}}", Fraction(-1, 2)),
        (r"\boxed{\text{about } {12}}", 12),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"\boxed{-\frac12}", Fraction(-1, 2)),
        (r"\dfrac 34", Fraction(3, 4)),
        (r"\frac1{20}", Fraction(1, 20)),
        (r"\frac{10}3", Fraction(10, 3)),
        (r"2\frac12", Fraction(5, 2)),
        (r"\boxed{10{,}000}", 10000),
        (r"\boxed{10,\!000}", 10000),
        (r"1\,234", 1234),
        ("1\u202f234\u2009567.5", Fraction("1234567.5")),
        ("5\u202f1234", 1234),
        ("1 000", 0),
        ("½", Fraction(1, 2)),
        ("-½", Fraction(-1, 2)),
        ("2½ cups", Fraction(5, 2)),
        ("2 ⅞", Fraction(23, 8)),
        (r"\boxed{7", 7),
        (r"\boxed{x}", None),
        ("no number", None),
        ("", None),
        ("1/0", None),
        ("1e999999999", None),
        ("9" * 300, None),
        ("1e-999999999999999999999", None),
        ("٣", None),
        ("0", 0),
        ("-0", 0),
        ("#### 72\n", 72),
    ],
)
def test_the_last_number_of_a_text_is_read_exactly(text: str, expected: int | Fraction | None) -> None:
    assert last(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>4</answer> and 5", 4),
        ("<answer>4</answer> <answer>5</answer>", 5),
        ("<answer>\\boxed{6} of 7</answer>", 6),
        ("<answer>4", None),
        ("4</answer>", None),
        ("</answer>4<answer>", None),
        ("<answer></answer> 3", None),
        ("3", None),
    ],
)
def test_with_a_tag_only_its_last_complete_content_counts(text: str, expected: int | None) -> None:
    assert last(text, "answer") == expected


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("so 1,234", "1234", 1.0),
        ("so 1,234", 1234, 1.0),
        ("$6.00", "6", 1.0),
        ("0.75", "3/4", 1.0),
        ("0.3333", "1/3", 0.0),
        ("72", "they sold 48+24 = 72 #### 72", 1.0),
        ("50%", "50", 1.0),
        ("50%", "0.5", 1.0),
        ("0.5", "50%", 1.0),
        ("50%", "50%", 1.0),
        ("0.5%", "50%", 0.0),
        ("0.1", 0.1, 1.0),
        ("5", "-5", 0.0),
        ("I do not know", "5", 0.0),
        ("1e999999999", "5", 0.0),
    ],
)
def test_the_reward_is_one_if_the_numbers_are_equal(text: str, answer: Any, expected: float) -> None:
    assert reward(GRADER, text, {"answer": answer}) == expected


@pytest.mark.parametrize(
    ("tolerances", "text", "expected"),
    [
        ({"absolute_tolerance": 0.1}, "10.1", 1.0),
        ({"absolute_tolerance": 0.1}, "10.1000001", 0.0),
        ({"relative_tolerance": 0.01}, "9.9", 1.0),
        ({"relative_tolerance": 0.01}, "9.89", 0.0),
        ({"absolute_tolerance": 0.5, "relative_tolerance": 0.01}, "10.5", 1.0),
        ({}, "10.0000001", 0.0),
    ],
)
def test_a_tolerance_is_the_decimal_as_written(
    tolerances: dict[str, float], text: str, expected: float
) -> None:
    assert reward({**GRADER, **tolerances}, text, {"answer": "10"}) == expected


def test_a_tag_may_be_written_with_its_brackets() -> None:
    assert read(**GRADER, tag="<answer>") == read(**GRADER, tag="answer")
    assert reward({**GRADER, "tag": "<answer>"}, "<answer>5</answer> 6", {"answer": 5}) == 1.0


def test_a_reference_without_a_number_is_unscorable_and_found_beforehand() -> None:
    found = score(GRADER, "5", {"answer": "five"})
    assert found.reward is None
    assert found.errors["numeric"].code == "invalid_variable_error"
    assert read(**GRADER).problems({"answer": "five"}) == ["reference has no number: 'five'"]
    assert read(**GRADER).problems({"answer": "5"}) == []
    assert read(**GRADER).problems({}) == ["{{item.answer}} does not resolve"]


@pytest.mark.parametrize("answer", ["3,5", "-3,5", "1234,5", "1.234,50", "3,14159", "1.234.567", "(1,2)"])
def test_a_reference_with_other_separators_is_refused(answer: str) -> None:
    reason = "reference has unusual separators in its number; write it like 1,234.5"
    found = score(GRADER, "5", {"answer": answer})
    assert (found.reward, found.errors["numeric"].message) == (None, reason)
    assert read(**GRADER).problems({"answer": answer}) == [f"{reason}: {answer!r}"]


@pytest.mark.parametrize("answer", ["1,234", "1,234.5", "3, 5", "so 1,5 or 7", "$1,000", "2. 5", "7."])
def test_a_reference_with_usual_separators_is_read(answer: str) -> None:
    assert read(**GRADER).problems({"answer": answer}) == []


@pytest.mark.parametrize("wrong", [{"absolute_tolerance": -1}, {"relative_tolerance": 2}, {"tag": "a b"}])
def test_an_option_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    place, _ = refusal(**GRADER, **wrong)
    assert place == ("numeric", *wrong)


@given(st.fractions(max_denominator=10**6), st.text(alphabet=st.characters(exclude_categories=["N", "Cs"])))
def test_a_fraction_is_read_back_from_any_surroundings(value: Fraction, before: str) -> None:
    assert last(f"{before} {value}") == value


@given(st.integers(-(10**15), 10**15))
def test_an_integer_with_thousands_separators_is_read_back(value: int) -> None:
    assert last(f"It is {value:,}!") == value


@given(st.text() | st.text(alphabet="0123456789,./-−+eE%$\\{}boxedfrac ^*×<answer>"))
@example("1" * 100_000)
@example("1," * 50_000 + "1")
@example("1/" * 50_000 + "1")
@example("\\boxed{" * 20_000)
@example("\\frac{" * 20_000 + "1")
@example("<answer>" * 20_000)
@example("1e" + "9" * 200)
@example("1" * 256 + "e400")
def test_no_text_makes_the_grader_fail(text: str) -> None:
    assert reward(GRADER, text, {"answer": "7"}) in (0.0, 1.0)
    assert reward({**GRADER, "tag": "answer"}, text, {"answer": "7"}) in (0.0, 1.0)
    assert reward(GRADER, "7", {"answer": text}) in (0.0, 1.0, None)
