from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_engine.contract.records import FinishReason
from grpo_engine.graders import make_sample
from grpo_engine.graders.pool import executors
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.graders.rules.python_code import PythonGrader
from tests.engine.sandbox.hostile_graders import GRADERS


def grader(body: str, **fields: Any) -> PythonGrader:
    return PythonGrader(type="python", source=f"def grade(sample, item):\n    {body}\n", **fields)


def test_a_number_is_the_reward() -> None:
    score = grader("return float(sample['output_text']) - item['less']").grade(
        make_sample("3.5"), {"less": 1}
    )
    assert score.reward == 2.5
    assert score.parts == {"python": 2.5}
    assert score.errors == {}


def test_a_dict_gives_reward_and_feedback() -> None:
    score = grader("return {'score': 1, 'feedback': 'well done, ' + item['who']}").grade(
        make_sample("x"), {"who": "you"}
    )
    assert (score.reward, score.feedback) == (1.0, "well done, you")


def test_deeply_nested_json_is_graded_as_text() -> None:
    text = "[" * 300 + "]" * 300
    score = grader("return float(sample['output_json'] is None)").grade(make_sample(text), {})
    assert score.reward == 1.0


def test_feedback_is_short_and_can_be_stored() -> None:
    score = grader(r"return {'score': 0.5, 'feedback': '\ud800' + 'x' * 10000}").grade(make_sample("x"), {})
    assert score.reward == 0.5
    assert len(score.feedback) <= 300
    score.model_dump_json().encode()


def test_the_sample_looks_like_openais() -> None:
    body = "return {'score': 1, 'feedback': repr(sorted(sample)) + repr(sample['choices'][0]['message'])}"
    sample = make_sample('{"x": 1}', num_tokens=7, finish_reason=FinishReason.LENGTH)
    assert grader(body).grade(sample, {}).feedback == (
        "['choices', 'environment_reward', 'finish_reason', 'num_tokens', 'output_json', 'output_text', "
        "'output_tools']"
        "{'role': 'assistant', 'content': '{\"x\": 1}'}"
    )
    checks = "sample['output_json']['x'] == 1, sample['num_tokens'] == 7, sample['finish_reason'] == 'length'"
    assert grader(f"return float(all([{checks}]))").evaluate(sample, {}).reward == 1.0


def test_dataclasses_and_imports_work() -> None:
    source = """
import dataclasses, json, re
from collections import Counter

@dataclasses.dataclass
class Found:
    words: list[str]

def count(text: str) -> Found:
    return Found(re.findall(r"\\w+", text))

def grade(sample, item):
    return Counter(count(sample["output_text"]).words)["a"] / 4
"""
    assert PythonGrader(type="python", source=source).evaluate(make_sample("a b a c"), {}).reward == 0.5


def test_an_exception_is_an_error_with_its_traceback() -> None:
    score = grader("return 1 / item['zero']").grade(make_sample("x"), {"zero": 0})
    assert score.reward is None
    error = score.errors["python"]
    assert error.code == "python_grader_runtime_error"
    assert 'File "<grader>", line 2, in grade' in error.message
    assert error.message.endswith("ZeroDivisionError: division by zero")
    assert (
        len(grader("raise ValueError('x' * 10**5)").grade(make_sample(""), {}).errors["python"].message)
        <= 2000
    )


@pytest.mark.parametrize(
    "name", ["sys.exit(0)", "os._exit(0)", "raising BaseException", "NaN", "a bool", "answering twice"]
)
def test_a_hostile_grader_is_unscorable_and_the_next_completion_is_scored(name: str) -> None:
    hostile = grader(f"if item: return 0.5\n    {GRADERS[name]}")
    score = hostile.grade(make_sample("x"), {})
    assert score.reward is None
    assert score.errors["python"].code == "python_grader_runtime_error"
    assert hostile.grade(make_sample("x"), {"honest": True}).reward == 0.5


def test_a_completion_is_never_executed() -> None:
    attack = "__import__('os')._exit(0)\n'''\"\"\"}} {\"score\": 1.0}\x00"
    score = grader("return float(sample['output_text'] == item['text'])").grade(
        make_sample(attack), {"text": attack}
    )
    assert score.reward == 1.0


def test_more_graders_than_servers_take_turns() -> None:
    graders = [grader(f"return {n}") for n in range(10)]
    again = [*graders, graders[0]]
    assert [each.evaluate(make_sample("x"), {}).reward for each in again] == [*range(10), 0]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def grade(sample, item)\n    return 1", "line 1: expected ':'"),
        ("x = 1\n\ndef grade(sample, item):\n    return (", "line 4"),
        ("def score(sample, item): return 1", "must define grade"),
        ("async def grade(sample, item): return 1", "line 1: grade must not be async"),
        ("x = 1\ndef grade(sample): return 1", "line 2: grade must take two arguments"),
        ("def grade(sample, item, more): return 1", "line 1: grade must take two arguments"),
        ("def grade(sample, item): pass\n#" + "x" * 256_000, "longer than 256,000 bytes"),
        ("x = " + "(" * 5000, "line 1"),
        ("x = " + "-" * 100_000 + "1", "nested too deeply"),
        ("def grade(sample, item): return 1\n\0", "null bytes"),
    ],
)
def test_a_wrong_source_is_refused_with_its_line(source: str, problem: str) -> None:
    with pytest.raises(ValidationError, match="source") as caught:
        PythonGrader(type="python", source=source)
    assert problem in caught.value.errors()[0]["msg"]


def test_openais_image_tag_is_accepted() -> None:
    assert grader("return 1", image_tag="2025-05-08").image_tag == "2025-05-08"
    assert grader("return 1").execution == "process"


@pytest.mark.parametrize("ending", ["return 1", "raise ValueError('no')", "return 'text'"])
def test_prints_are_kept_whatever_follows_and_cut(ending: str) -> None:
    score = grader(f"print('x' * 5000); {ending}", name="own").grade(make_sample("x"), {})
    assert score.printed == {"own": "x" * 2000 + "…"}
    assert "printed" not in score.feedback


def test_a_multi_names_the_parts_that_printed() -> None:
    parts = {"loud": grader("print('a'); print('b'); return 1"), "quiet": grader("return 1")}
    both = Multi.model_validate({"type": "multi", "graders": parts, "calculate_output": "loud + quiet"})
    assert both.grade(make_sample("x"), {}).printed == {"loud": "a\nb"}


HANGS = ["while True: pass", "time.sleep(3600)", "print('y', end='')\n    while True: pass"]


def test_lines_printed_before_the_deadline_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "ANSWER_SECONDS", 60.0)
    source = "import time\n    if item: return 0.5\n    print('x' * 3000)\n    {}"
    with ExitStack() as stack:
        late = [grader(source.format(hang), name="own") for hang in HANGS]
        gradings = [stack.enter_context(Grading(e, processes=1, deadline_seconds=4.0)) for e in late]
        futures = [grading.submit(make_sample("x"), {}) for grading in gradings]
        after = [grading.submit(make_sample("x"), {"honest": True}) for grading in gradings]
        for score in (future.result(120) for future in futures):
            assert score.printed == {"own": "x" * 2000 + "…"}
            error = score.errors["own"]
            assert (error.code, error.message) == ("unresponsive_reward_error", "no answer within 4 seconds")
        for score in (future.result(120) for future in after):
            assert (score.reward, score.printed) == (0.5, {})
