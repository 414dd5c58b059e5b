import json
import tracemalloc
from typing import Any

import pytest

from grpo_engine.contract.records import Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.rules.code_tests import CodeTests
from grpo_engine.graders.rules.code_verdict import read_tests, same, same_text
from tests.engine.sandbox.hostile import SUBMISSIONS

ADD = [{"call": "add", "args": [1, 2], "expected": 3}]
HONEST = "Here it is:\n\n```python\ndef add(a, b):\n    return a + b\n```\nDone."

BATCHES = [list(SUBMISSIONS)[first : first + 6] for first in range(0, len(SUBMISSIONS), 6)]


def run(text: str, tests: Any, **fields: Any) -> Score:
    grader = CodeTests(type="code_tests", tests="{{item.tests}}", **fields)
    return grader.grade(make_sample(text), {"tests": tests})


@pytest.mark.parametrize("names", BATCHES)
def test_hostile_submissions_do_not_pass_and_the_next_honest_one_does(names: list[str]) -> None:
    for name in names:
        score = run(SUBMISSIONS[name], ADD, timeout_seconds=0.5)
        assert (score.reward, score.errors) == (0.0, {}), name
        assert score.feedback.startswith("test 1 of 1: add(1, 2) should give 3"), name
        assert len(score.feedback) <= 300, name
        score.model_dump_json().encode()
    assert run(HONEST, ADD).reward == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "print('PASS')",
        "import os\nprint(3, flush=True)\nos._exit(0)",
        "print(3)\nraise SystemExit(1)",
        "print(3)\n1 / 0",
        "while True: print(3)",
    ],
)
def test_a_program_that_ends_badly_or_prints_a_verdict_does_not_pass(program: str) -> None:
    score = run(program, [{"stdin": "1 2\n", "expected_stdout": "3\n"}], timeout_seconds=1.0)
    assert score.reward == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "print(sum(map(int, input().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())), end='')\nsys.exit(0)",
        "import os\na, b = os.read(0, 100).split()\nos.write(1, b'%d  \\n\\n' % (int(a) + int(b)))",
        "import threading\nthreading.Thread(target=lambda: print(sum(map(int, input().split())))).start()",
        "import sys\nif __name__ == '__main__':\n    print(sum(map(int, open(0).read().split())))",
        "import sys\nprint('why', file=sys.stderr)\nprint(3)",
    ],
)
def test_an_honest_program_passes(program: str) -> None:
    assert run(program, [{"stdin": "1 2\n", "expected_stdout": "3\n"}]).reward == 1.0


def test_the_reward_is_the_fraction_of_tests_and_the_feedback_the_first_failure() -> None:
    tests = [
        {"call": "half", "args": [4], "expected": 2},
        {"call": "half", "args": [5], "expected": 2.5},
        {"call": "half", "args": ["x"], "expected": None},
        {"call": "half", "kwargs": {"n": 8}, "expected": 4},
    ]
    score = run("def half(n):\n    return n // 2", tests)
    assert score.reward == 0.5
    assert score.parts == {"code_tests": 0.5}
    assert score.feedback == "test 2 of 4: half(5) should give 2.5, got 2"
    assert run("def half(n):\n    return n // 2", tests, scoring="all").reward == 0.0
    assert run("def half(n):\n    return n / 2", tests[:2], scoring="all").reward == 1.0


def test_feedback_names_an_exception_and_a_time_out() -> None:
    tests = [{"call": "f", "args": [0], "expected": 1}]
    assert run("def f(n):\n    return 1 / n", tests).feedback.endswith("ZeroDivisionError: division by zero")
    slow = run("def f(n):\n    while True: pass", tests, timeout_seconds=0.3)
    assert slow.feedback == "test 1 of 1: f(0) should give 1: no result within 0.3 s: the code may loop"


def test_every_test_is_explained_with_what_it_got_and_should_have_got(patient: Any) -> None:
    patient(lambda n: n == 3)
    code = """
def f(n):
    if n == 2:
        return n / 0
    if n == 3:
        while True: pass
    if n == 4:
        return bytearray(2**31)
    return n
"""
    tests = [{"call": "f", "args": [n], "expected": 0} for n in range(5)]
    right, wrong, raises, loops, large = run(code, tests, timeout_seconds=1.0).explanations["code_tests"]
    assert (right.label, right.passed, right.got, right.expected) == ("test 1 of 5: f(0)", True, "", "")
    assert (wrong.label, wrong.passed, wrong.got, wrong.expected) == ("test 2 of 5: f(1)", False, "1", "0")
    assert (raises.detail, raises.expected) == ("ZeroDivisionError: division by zero", "0")
    assert loops.detail == "no result within 1 s: the code may loop"
    assert large.detail == "out of memory: more than 1,024 MiB"


def test_tests_after_the_total_time_are_explained_as_not_run(patient: Any) -> None:
    patient(bool)
    tests = [{"call": "f", "args": [n], "expected": n} for n in range(4)]
    code = "def f(n):\n    while n: pass\n    return n"
    found = run(code, tests, timeout_seconds=0.5, total_timeout_seconds=0.8).explanations["code_tests"]
    assert [entry.passed for entry in found] == [True, False, False, False]
    assert found[-1].detail == "not run: the tests together took 0.8 s"


def test_explanations_are_bounded_whatever_the_code_prints_and_keep_the_failures() -> None:
    tests = [{"call": "f", "args": [n], "expected": "x" * 9000} for n in range(50)]
    found = run("def f(n):\n    return 'x' * 9000 if n < 30 else '\\ud800' * 900_00", tests)
    entries = found.explanations["code_tests"]
    assert [entry.passed for entry in entries] == [*[False] * 11, None]
    assert [entry.label[:8] for entry in entries[:2]] == ["test 31 ", "test 32 "]
    assert (entries[-1].label, entries[-1].detail) == ("39 more", "30 passed, 9 did not")
    assert all(len(text) <= 200 for one in entries for text in (one.label, one.got, one.expected, one.detail))
    assert len(found.model_dump_json().encode()) < 10_000


def test_a_test_that_hangs_fails_alone(patient: Any) -> None:
    patient(lambda n: n == 1)
    tests = [{"call": "f", "args": [n], "expected": n} for n in range(4)]
    score = run("def f(n):\n    while n == 1: pass\n    return n", tests, timeout_seconds=1.0)
    assert score.reward == 0.75


def test_a_submission_that_hangs_in_every_test_is_wrong_at_the_total_time_limit(patient: Any) -> None:
    patient(bool)
    tests = [{"call": "f", "args": [n], "expected": n} for n in range(50)]
    code = "def f(n):\n    while n: pass\n    return n"
    score = run(code, tests, timeout_seconds=0.4, total_timeout_seconds=1.0)
    assert (score.reward, score.errors) == (1 / 50, {})


@pytest.mark.usefixtures("patient")
def test_a_submission_that_hangs_is_wrong_also_at_an_earlier_deadline_of_the_grading() -> None:
    tests = [{"call": "f", "args": [0], "expected": 0}, {"call": "f", "args": [1], "expected": 1}]
    limits = {"timeout_seconds": 60, "total_timeout_seconds": 600}
    grader = CodeTests(type="code_tests", tests="{{item.tests}}", **limits)
    with Grading(grader, processes=1, deadline_seconds=6) as grading:
        sample = make_sample("import time\ndef f(x):\n    if x: time.sleep(3600)\n    return x")
        assert grading.submit(sample, {"tests": tests}).result(60).reward == 0.5


def test_no_test_sees_what_another_left() -> None:
    code = """
import os
seen = []
def f(n):
    seen.append(n)
    open(f'/tmp/{n}', 'w').close()
    return [seen, len(os.listdir('/tmp'))]
"""
    tests = [{"call": "f", "args": [n], "expected": [[n], 1]} for n in range(3)]
    assert run(code, tests).reward == 1.0


def test_methods_tuples_and_named_types_count_by_their_data() -> None:
    code = """
from collections import Counter, OrderedDict, namedtuple
Pair = namedtuple("Pair", "a b")
class Solution:
    def pair(self, a: int, b: int): return Pair(a, b)
    def count(self, text): return Counter(text)
    def keys(self): return {1: "x", None: [True, 1.5]}
"""
    tests = [
        {"call": "Solution.pair", "args": [1, 2], "expected": [1, 2]},
        {"call": "Solution.count", "args": ["aab"], "expected": {"a": 2, "b": 1}},
        {"call": "Solution.keys", "expected": {"1": "x", "null": [True, 1.5]}},
    ]
    score = run(code, tests)
    assert (score.reward, score.feedback) == (1.0, "")


def test_only_the_first_tests_of_a_long_row_count() -> None:
    tests = [*ADD, {"call": "missing", "expected": 1}]
    assert run(HONEST, tests, max_tests=1).reward == 1.0
    assert run(HONEST, tests).reward == 0.5


def test_only_the_inside_of_the_tag_counts() -> None:
    text = "<answer>def add(a, b):\n    return a + b</answer> def add(: not code"
    assert run(text, ADD, tag="answer").reward == 1.0
    assert run(HONEST, ADD, tag="answer").reward == 0.0


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("no json", "its tests do not parse"),
        (
            ["assert add(1, 2) == 3"],
            'its tests do not parse as a JSON list of {"call", "args", "expected"} or '
            '{"stdin", "expected_stdout"} objects: ',
        ),
        ([], "at least 1"),
        ([{"call": "f"}], "do not parse"),
        ([{"stdin": "x"}], "do not parse"),
        ([{"call": "os.system('x')", "expected": 1}], "do not parse"),
        ([{"call": "f", "expected": 1, "weight": 2}], "do not parse"),
        ({"call": "f", "expected": 1}, "do not parse"),
    ],
)
def test_a_row_whose_tests_do_not_parse_is_named_and_unscorable(tests: Any, problem: str) -> None:
    grader = CodeTests(type="code_tests", tests="{{item.tests}}")
    found = grader.problems({"tests": tests})
    assert len(found) == 1
    assert problem in found[0]
    score = run(HONEST, tests)
    assert score.reward is None
    assert score.errors["code_tests"].code == "invalid_variable_error"


def test_a_row_whose_tests_parse_has_no_problems() -> None:
    grader = CodeTests(type="code_tests", tests="{{item.tests}}")
    assert grader.problems({"tests": ADD}) == []
    assert grader.problems({"tests": '[{"call": "f", "expected": 1}]'}) == []
    assert grader.problems({}) == ["{{item.tests}} does not resolve"]
    assert grader.execution == "process"
    assert len(read_tests('"[{\\"call\\": \\"f\\", \\"expected\\": 1}]"')) == 1


def test_tests_in_another_shape_are_refused_with_little_memory() -> None:
    text = json.dumps([{"input": "1", "output": "1"}] * 10_000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^0\.CallTest\.call: Field required$"):
            read_tests(text)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        (3, 3, True),
        (3, 3.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.31, 0.3, False),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (None, None, True),
        (None, 0, False),
        ("3", 3, False),
        ([1, 2], [1, 2], True),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [0.1 + 0.2]}, {"a": [0.3]}, True),
        (10**400, 1.5, False),
        (10**17 + 1, 10**17, False),
    ],
)
def test_values_are_equal_as_plain_types(got: Any, expected: Any, equal: bool) -> None:
    assert same(got, expected, 1e-9) is equal


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        ("3\n", "3", True),
        ("1 2  \n3\n\n", "1 2\n3\n", True),
        ("1  2\n", "1 2\n", True),
        ("0.30000000000000004", "0.3", True),
        ("0.31", "0.3", False),
        ("3.0", "3", False),
        ("nan", "0.5", False),
        ("1\n2", "1 2", False),
        ("", "0", False),
    ],
)
def test_outputs_are_equal_line_by_line(got: str, expected: str, equal: bool) -> None:
    assert same_text(got, expected, 1e-9) is equal
