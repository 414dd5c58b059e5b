"""Hostile submissions and graders through the real pool, with honest completions in flight beside them."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.tools import PythonTool
from grpo_engine.contract.records import Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.toolbox import Interpreters, Toolbox
from grpo_engine.sandbox import PythonServer
from tests.engine.graders.helpers import has_ended, read, refusal
from tests.engine.sandbox.more_hostile import CALLS, FORGE, FORGED, PROGRAMS

HONEST = "def add(a, b):\n    return a + b"
SOON = 10.0


@pytest.fixture(scope="module")
def grading() -> Iterator[Grading]:
    grader = read(type="code_tests", tests="{{item.tests}}", timeout_seconds=0.5, total_timeout_seconds=2.0)
    with Grading(grader, processes=2, deadline_seconds=SOON) as grading:
        yield grading
        started = [each for pid in grading.pids for each in (pid, *descendants(pid))]
    assert len(started) >= 2
    assert all(has_ended(pid) for pid in started)


def descendants(pid: int) -> list[int]:
    """All processes below this one, sandboxes and what runs in them among them."""
    tasks = Path(f"/proc/{pid}/task")
    children = [
        int(child) for task in os.listdir(tasks) for child in (tasks / task / "children").read_text().split()
    ]
    return children + [each for child in children for each in descendants(child)]


def beside_an_honest_one(grading: Grading, code: str, test: dict[str, Any]) -> Score:
    """Score of the code, of which nothing is to be seen in the score of the honest one beside it."""
    score = grading.submit(make_sample(code), {"tests": [test]})
    honest = grading.submit(make_sample(HONEST), {"tests": [{"call": "add", "args": [1, 2], "expected": 3}]})
    assert honest.result().reward == 1.0
    return score.result()


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_answers_wrongly_in_a_clever_way_does_not_pass(grading: Grading, name: str) -> None:
    code, expected = CALLS[name]
    score = beside_an_honest_one(grading, code, {"call": "add", "args": [1, 2], "expected": expected})
    assert (score.reward, score.errors) == (0.0, {})
    assert score.feedback.startswith("test 1 of 1: add(1, 2) should give ")
    assert len(score.model_dump_json()) < 1000


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_prints_wrongly_in_a_clever_way_does_not_pass(grading: Grading, name: str) -> None:
    code, expected = PROGRAMS[name]
    score = beside_an_honest_one(grading, code, {"stdin": "1 2\n", "expected_stdout": expected})
    assert (score.reward, score.errors) == (0.0, {})
    assert len(score.model_dump_json()) < 2000


def test_a_submission_that_sleeps_in_every_test_ends_at_the_total_time_limit(grading: Grading) -> None:
    tests = [{"call": "add", "args": [1, n], "expected": n + 1} for n in range(100)]
    start = time.monotonic()
    code = "import time\ndef add(a, b):\n    time.sleep(0.45)\n    return 0"
    score = grading.submit(make_sample(code), {"tests": tests}).result()
    assert score.reward == 0.0
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize(
    "mark",
    ["os.utime('/tmp', (7, 7))", "os.chmod('/tmp', 0o500)", "os.setxattr('/tmp', 'user.x', b'1')"],
)
def test_a_mark_on_the_writable_folder_is_gone_in_the_next_call(mark: str) -> None:
    source = (
        "import os\ndef f(mark):\n    seen = os.stat('/tmp')\n"
        "    found = [oct(seen.st_mode), seen.st_mtime == 7, os.listxattr('/tmp')]\n"
        f"    try:\n        if mark: {mark}\n    except OSError: pass  # before Linux 6.6\n"
        "    return found"
    )
    with PythonServer(source) as server:
        values = [server.request(2.0, mode="call", call="f", args=[n < 2], kwargs={}).value for n in range(3)]
    assert values == ['["0o40755", false, []]'] * 3


def test_a_tool_call_cannot_affect_the_next_completions_call() -> None:
    interpreters = Interpreters(1)
    try:
        interpreters.run("import os\nos.chmod('/tmp', 0o500)", 2.0)
        assert interpreters.run("1 + 1", 2.0).value == '"2"'
    finally:
        interpreters.close()


def test_tool_responses_can_be_tokenized() -> None:
    code = "class R:\n    def __repr__(self): return '\\ud800x'\nR()"
    with Toolbox([PythonTool(type="python")]).open() as counter:
        answer = counter.submit(ToolCall("python", {"code": code}), {}, "key").result()
    assert (answer.text, answer.failed) == ("?x", False)


def test_a_forged_grader_answer_is_checked_like_any_other() -> None:
    cases = "\n".join(f"    if item['case'] == {name!r}: forge({body})" for name, body in FORGED.items())
    source = f"{FORGE}\ndef grade(sample, item):\n{cases}\n    return 0.5"
    with Grading(read(type="python", source=source), deadline_seconds=SOON) as grading:
        futures = {name: grading.submit(make_sample("x"), {"case": name}) for name in FORGED}
        honest = grading.submit(make_sample("x"), {"case": "honest"})
        for name, future in futures.items():
            score = future.result()
            assert score.reward is None, name
            assert score.errors["python"].code == "python_grader_runtime_error"
            assert len(score.model_dump_json()) < 3000
        assert honest.result().reward == 0.5


def test_a_source_that_takes_long_to_parse_is_refused_at_once() -> None:
    source = 'def grade(sample, item):\n    return 1\nx = f"' + "{a}" * 80_000 + '"'
    start = time.process_time()
    place, message = refusal(type="python", source=source)
    assert place == ("python", "source")
    assert "too many braces for a source of this length that has f-strings" in message
    assert time.process_time() - start < 1.0


def test_escaped_surrogates_reach_no_record() -> None:
    sample = make_sample('{"x": "\\ud800", "\\udc00": 1, "y": "\\u00e9"}')
    assert sample.output_json == {"x": "?", "?": 1, "y": "é"}
    grader = read(
        type="string_check", operation="eq", input="{{sample.output_json.x}}", reference="{{item.answer}}"
    )
    score = grader.grade(sample, {"answer": "a"})
    assert score.feedback == 'expected "a", found "?"'
    assert score.model_dump_json()
