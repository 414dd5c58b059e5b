"""`math` against math-verify itself, called as its documentation calls it."""

import subprocess
import sys
from collections.abc import Iterator

import math_verify
import pytest

from grpo_engine.graders import make_sample
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.rules import math_answer
from tests.engine.graders.helpers import read, refusal, score

GRADER = {"type": "math", "reference": "{{item.answer}}"}

PAIRS = [
    # numbers
    ("$5$", "The answer is 5.", True),
    ("5", "$5$", True),
    ("$5$", "6", False),
    ("1,234", "so 1234", True),
    ("$1234$", "1,234.00", True),
    ("$-3$", "$3$", False),
    ("$0.333333$", "$\\frac{1}{3}$", True),
    ("$0.33$", "$\\frac{1}{3}$", False),
    ("$10^{20}$", "100000000000000000000", True),
    ("$2.5 \\times 10^{3}$", "2500", True),
    ("$\\infty$", "$-\\infty$", False),
    ("$\\infty$", "\\boxed{\\infty}", True),
    # fractions
    ("$\\frac{1}{2}$", "0.5", True),
    ("$\\frac{1}{2}$", "1/2", True),
    ("$\\frac{1}{2}$", "$\\dfrac{2}{4}$", True),
    ("$\\frac12$", "$\\tfrac{1}{2}$", True),
    ("$-\\frac{1}{2}$", "$\\frac{-1}{2}$", True),
    ("$1\\frac{1}{2}$", "$1.5$", True),
    ("\\frac{3}{4}", "\\boxed{\\frac{3}{4}}", True),
    # expressions
    ("$x^2-1$", "$(x-1)(x+1)$", True),
    ("$x^2-1$", "$x^2+1$", False),
    ("$\\sqrt{8}$", "$2\\sqrt{2}$", True),
    ("$\\sin^2 x + \\cos^2 x$", "$1$", True),
    ("$\\log_2 8$", "3", True),
    ("$e^{i\\pi}$", "$-1$", False),
    ("$3+4i$", "$4i+3$", True),
    ("$\\binom{5}{2}$", "10", True),
    ("$5!$", "$120$", True),
    ("$a_1+a_2$", "$a_2+a_1$", True),
    ("$2x+y$", "$x+2y$", False),
    ("$\\pi$", "$3.14159265358979$", True),
    ("$|x|$", "$x$", False),
    # boxed, also nested and unfinished
    ("$7$", "First \\boxed{3}, but then \\boxed{7}", False),
    ("$7$", "\\boxed{\\boxed{7}}", True),
    ("$7$", "$$\\boxed{7}$$ and 12 more", True),
    ("$\\frac{1}{\\sqrt{2}}$", "\\boxed{\\frac{1}{\\sqrt{2}}}", True),
    ("$7$", "\\boxed{7", False),
    ("$7$", "\\boxed{}", False),
    ("$7$", "The final answer is $7$. I hope it is correct. \\boxed{8}", True),
    # sets, intervals, tuples
    ("$\\{1,2,3\\}$", "$\\{3,2,1\\}$", True),
    ("$\\{1,2\\}$", "$\\{1,2,3\\}$", False),
    ("$[0,1]$", "$[0,1]$", True),
    ("$[0,1]$", "$(0,1)$", False),
    ("$(-\\infty,2]\\cup[5,\\infty)$", "$(-\\infty,2]\\cup[5,\\infty)$", True),
    ("$(1,2)$", "$(1,2)$", True),
    ("$(1,2)$", "$(2,1)$", False),
    ("$\\emptyset$", "$\\{\\}$", True),
    ("$\\{1,3\\}\\cup\\{2,4\\}$", "$\\{1,2,3,4\\}$", True),
    ("$1, 2, 3$", "$1$, $2$ and $3$", True),
    # matrices
    (
        "$\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}$",
        "$\\begin{bmatrix}1&2\\\\3&\\frac{8}{2}\\end{bmatrix}$",
        True,
    ),
    (
        "$\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}$",
        "$\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}$",
        False,
    ),
    # percent, units, money
    ("$50\\%$", "0.5", True),
    ("$50\\%$", "50", True),
    ("50%", "$\\frac{1}{2}$", True),
    ("$5\\text{ cm}$", "5", True),
    ("$5$", "$5\\ \\mathrm{m/s}$", True),
    ("$6$", "\\$6.00", False),
    ("$90^\\circ$", "90", True),
    # equations and inequalities
    ("$x=5$", "5", True),
    ("$5$", "$x=5$", True),
    ("$x=5$", "$y=5$", False),
    ("$y=2x+1$", "$2x+1=y$", True),
    ("$x>5$", "$5<x$", True),
    ("$x>5$", "$x\\ge 5$", False),
    ("$1<x<2$", "$(1,2)$", True),
    ("$(1,2)$", "$1<x<2$", False),
    ("$x \\ne 3$", "$x \\neq 3$", True),
    # words and letters
    ("$A$", "$A$", True),
    ("$A$", "$B$", False),
    ("$\\text{Tuesday}$", "$\\text{Tuesday}$", True),
    ("$\\text{yes}$", "\\boxed{\\text{no}}", False),
    ("$\\text{(C)}$", "\\boxed{\\text{(C)}}", True),
    # nothing and garbage
    ("$1$", "", False),
    ("$1$", "no idea", False),
    ("$1$", "$", False),
    ("$1$", "$\\frac{1}{$", False),
    ("$1$", "\\boxed{\\frac{\\frac{\\frac}", False),
    ("$1$", "{" * 200, False),
    ("$1$", "\u0000\u202e\ud83d\ude00", False),
    ("$1$", "__import__('os').system('true')", False),
    ("$\\frac{1}{0}$", "$\\frac{1}{0}$", True),
]


@pytest.fixture(scope="module")
def grading() -> Iterator[Grading]:
    with Grading(read(**GRADER), processes=1, deadline_seconds=60.0) as grading:
        yield grading


@pytest.mark.parametrize(("reference", "answer", "expected"), PAIRS)
def test_the_verdict_is_that_of_math_verify(
    grading: Grading, reference: str, answer: str, expected: bool
) -> None:
    future = grading.submit(make_sample(answer), {"answer": reference})
    assert math_verify.verify(math_verify.parse(reference), math_verify.parse(answer)) is expected
    found = future.result()
    assert found.errors == {}
    assert found.reward == float(expected)


@pytest.mark.parametrize(
    ("reference", "answer"), [("-5", "The answer is −5."), ("−5", "$-5$"), ("$2-x$", "$2 − x$")]
)
def test_a_unicode_minus_is_a_minus(grading: Grading, reference: str, answer: str) -> None:
    assert grading.submit(make_sample(answer), {"answer": reference}).result().reward == 1.0


def test_an_endless_answer_costs_at_most_one_deadline() -> None:
    # math-verify itself gives up after 5 seconds
    with Grading(read(**GRADER), deadline_seconds=2.5) as grading:
        endless = grading.submit(make_sample("\\boxed{9^{9^{9^9}}}"), {"answer": "$5$"})
        good = grading.submit(make_sample("5"), {"answer": "$5$"})
        assert endless.result().errors["math"].code == "unresponsive_reward_error"
        assert good.result().reward == 1.0


@pytest.mark.parametrize("reference", ["$", "$$", "\\boxed{}"])
def test_a_reference_without_an_answer_is_unscorable(reference: str) -> None:
    found = score(GRADER, "$1$", {"answer": reference})
    assert found.reward is None
    assert found.errors["math"].code == "invalid_variable_error"
    assert found.errors["math"].message.startswith("math-verify finds no answer in the reference ")


@pytest.mark.parametrize(
    ("reference", "answer", "expected"),
    [
        ("x^2+2x+1", "\\boxed{(x+1)^2}", 1.0),
        ("x^2+2x+1", "\\boxed{(x-1)^2}", 0.0),
        ("(1,\\infty)", "$(1, \\infty)$", 1.0),
        ("\\text{Evelyn}", "It is \\boxed{\\text{Evelyn}}.", 1.0),
        ("B", "\\boxed{B}", 1.0),
        ("B", "\\boxed{C}", 0.0),
        ("\\$6.00", "6", 1.0),
    ],
)
def test_a_reference_in_which_math_verify_finds_nothing_is_read_as_boxed(
    reference: str, answer: str, expected: float
) -> None:
    assert math_verify.parse(reference) == []
    boxed = math_verify.parse(f"\\boxed{{{reference}}}")
    assert math_verify.verify(boxed, math_verify.parse(answer)) is bool(expected)
    assert score(GRADER, answer, {"answer": reference}).reward == expected


def test_bare_latex_with_a_number_needs_its_delimiters() -> None:
    item = {"answer": "2\\sqrt{2}"}
    assert score(GRADER, "$\\sqrt{8}$", item).reward == 0.0
    assert score({**GRADER, "reference": "${{item.answer}}$"}, "$\\sqrt{8}$", item).reward == 1.0


@pytest.mark.parametrize("answer", ["9^9^9^9", "$(10^8)!$"])
def test_an_answer_that_takes_too_long_is_wrong_as_for_math_verify(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math_answer, "_SECONDS", 1)
    gold, endless = math_verify.parse("$5$"), math_verify.parse(answer, parsing_timeout=1)
    assert math_verify.verify(gold, endless, timeout_seconds=1) is False
    found = score(GRADER, answer, {"answer": "$5$"})
    assert (found.reward, found.errors) == (0.0, {})


def test_only_the_end_of_a_long_completion_is_read() -> None:
    long = "\\boxed{4} " + "word " * 1000
    assert score(GRADER, long, {"answer": "$4$"}).reward == 0.0
    assert score(GRADER, long + "\\boxed{4}", {"answer": "$4$"}).reward == 1.0


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("$4$", None),
        (4, None),
        (" ", "reference is empty"),
        ("9" * 4097, "reference has 4097 characters, at most 4096"),
    ],
)
def test_a_reference_is_checked_before_anything_is_graded(reference: str, problem: str | None) -> None:
    item = {"answer": reference}
    assert read(**GRADER).problems(item) == ([problem] if problem else [])
    if problem:
        assert score(GRADER, "4", item).errors["math"].message == problem


def test_a_row_without_the_reference_is_a_problem() -> None:
    assert read(**GRADER).problems({}) == ["{{item.answer}} does not resolve"]
    assert refusal(type="math", reference="{{item")[0] == ("math", "reference")


def test_feedback_on_a_wrong_answer_states_the_expected_one() -> None:
    assert score(GRADER, "$4$", {"answer": "$4$"}).feedback == ""
    reported = score(GRADER, "$4$", {"answer": "$5$"}).feedback
    assert reported == 'the answer is not equal to the expected "$5$"'
    assert len(score(GRADER, "$4$", {"answer": "$5$" + "\n" * 4000}).feedback) <= 300


def test_reading_and_checking_a_math_grader_does_not_load_sympy() -> None:
    program = (
        "import sys\n"
        "from pydantic import TypeAdapter\n"
        "from grpo_engine.graders import Grader\n"
        "import grpo_engine.graders.pool.pool\n"
        f"TypeAdapter(Grader).validate_python({GRADER!r}).problems({{'answer': '4'}})\n"
        "heavy = {'sympy', 'math_verify', 'nltk', 'sacrebleu', 'numpy', 'rapidfuzz'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
