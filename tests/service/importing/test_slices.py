"""The part of a script that a reward function needs, as a grader that runs."""

from pathlib import Path

from tests.service.importing.test_rewards import run
from tests.service.importing.test_script import job_of, script_of, script_with


def test_a_constant_in_parentheses_over_several_lines_stays_one_value(tmp_path: Path) -> None:
    before = """
import re

PATTERN = (
    r"<think>.*</think>"
    r"<answer>(4)</answer>"
)

def right(completions, **kwargs):
    return [float(bool(re.fullmatch(PATTERN, one[0]["content"]))) for one in completions]
"""
    found = job_of(script_of(tmp_path, script_with(before=before, reward_funcs="right")))
    source = found.job["method"]["reinforcement"]["grader"]["source"]
    answers = ("<think>a</think><answer>4</answer>", "4")
    assert [run(source, text, {"messages": []}) for text in answers] == [1.0, 0.0]
