from types import SimpleNamespace

import pydantic_monty
import pytest

from grpo_engine.sandbox.monty import MontyServer, subset_problems
from tests.engine.sandbox.patience import PATIENCE

GRADER = """
import re
def grade(sample, item):
    found = re.search(item['a'], sample['output_text'])
    return {'score': 1.0 if found else 0.0}
"""


def test_a_grader_in_the_subset_has_no_problems() -> None:
    assert subset_problems(GRADER) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("class A: pass\nclass B(A): pass\ndef grade(s, i): return 1", "inheritance"),
        ("import numpy\ndef grade(s, i): return 1", "numpy"),
        ("def other(s, i): return 1", "grade"),
        ("while True: pass\ndef grade(s, i): return 1", "time limit"),
    ],
)
def test_a_grader_outside_the_subset_is_refused_with_the_reason(source: str, problem: str) -> None:
    problems = subset_problems(source)
    assert len(problems) == 1
    assert problem in problems[0]


def test_a_grader_in_the_subset_grades() -> None:
    with MontyServer(GRADER) as server:
        assert server.call({"output_text": "a 42"}, {"a": r"\d+"}, PATIENCE).value == '{"score": 1.0}'
        assert server.call({"output_text": "none"}, {"a": r"\d+"}, PATIENCE).value == '{"score": 0.0}'


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "raise ValueError('no')",
        "return float('nan')",
        "return [0] * 10**10",
        "return 10**5000",
        "return grade(sample, item)",
        "return open('/etc/passwd').read()",
        "while True: print('x' * 10000)",
    ],
)
def test_a_hostile_grader_is_an_error_of_its_call_and_the_next_call_works(body: str) -> None:
    with MontyServer(f"def grade(sample, item):\n    if item: return 0.5\n    {body}\n") as server:
        outcome = server.call({}, {}, 1.0)
        assert outcome.value is None
        assert outcome.error
        assert server.call({}, {"honest": True}, PATIENCE).value == "0.5"


def test_a_worker_that_ends_only_at_the_pool_s_own_limit_was_out_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the pool may kill it before its own limit ends it."""

    class Killed(Exception):
        """pydantic-monty allows no instances of its own errors."""

    def checkout(**_options: object) -> None:
        raise Killed("monty worker killed after exceeding request timeout of 3s")

    with MontyServer(GRADER) as server:
        pool, server._pool = server._pool, SimpleNamespace(checkout=checkout)
        monkeypatch.setattr(pydantic_monty, "MontyError", Killed)
        outcome = server.load(2.0)
        server._pool = pool
    assert outcome.timed_out
    assert outcome.error.startswith("time limit exceeded: ")
