"""Reward functions of TRL and verl → graders that return the same rewards."""

import json
from typing import Any

import pytest
from trl.rewards import get_soft_overlong_punishment, think_format_reward

from grpo_engine.config.job import Reinforcement
from grpo_engine.contract.records import Sample
from grpo_engine.graders import Grader
from grpo_engine.graders.rules.python_code import PythonGrader, as_openai
from service.importing.convert import Imported, imported
from service.importing.rewards import wrapped, wrapped_verl
from service.importing.rules import Options, Refusal
from service.jobs.model.schemas import JobCreate

CONVERSATION = {"messages": [{"role": "user", "content": "2+2?"}]}
SHORT = """
import re

LIMIT = 5

def short(completions, answer, prompts=None, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(len(t) < LIMIT and a in t) for t, a in zip(texts, answer)]
"""


def of(*names: str, sources: dict[str, str] | None = None, **fields: Any) -> Imported:
    given = {"model_name_or_path": "tiny", "dataset_name": "rows.jsonl", "reward_funcs": list(names)}
    return imported({**given, **fields}, Options(sources=sources or {}), "trl")


def grader_of(found: Imported) -> Grader:
    assert found.is_whole, [line for line in found.lines if line.verdict == "refused"]
    method = JobCreate.model_validate(found.job).method
    assert isinstance(method, Reinforcement)
    return method.reinforcement.grader


def run(source: str, text: str, item: dict[str, Any]) -> Any:
    """Calls `grade` as the sandbox does."""
    space: dict[str, Any] = {}
    exec(source, space)
    return json.loads(json.dumps(space["grade"](as_openai(Sample(output_text=text)), item)))


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think>b",
        "<think>\na\n</think>\nb",
        "a<think>b</think>",
        "<think>a",
        "a</think>",
        "<think>a<think>b</think>",
        "",
    ],
)
def test_the_think_format_equals_trl_s(text: str) -> None:
    expected = think_format_reward([[{"content": text}]])[0]
    assert grader_of(of("think_format_reward")).grade(Sample(output_text=text), {}).reward == expected


@pytest.mark.parametrize("num_tokens", [1, 1024, 1025, 1100, 1279, 1280, 1400])
def test_the_overlong_punishment_equals_trl_s(num_tokens: int) -> None:
    theirs = get_soft_overlong_punishment(max_completion_len=1280, soft_punish_cache=256)
    expected = theirs(completion_ids=[[0] * num_tokens])[0]
    sample = Sample(output_text="a", num_tokens=num_tokens)
    found = grader_of(of("get_soft_overlong_punishment")).grade(sample, {}).reward
    assert found == pytest.approx(expected)


def test_accuracy_compares_with_the_solution() -> None:
    grader = grader_of(of("accuracy_reward"))
    item = {"solution": r"$\frac{1}{3}$"}
    assert grader.grade(Sample(output_text=r"so \boxed{\frac{2}{6}}"), item).reward == 1.0
    assert grader.grade(Sample(output_text=r"so \boxed{\frac{1}{2}}"), item).reward == 0.0


def test_several_functions_are_a_weighted_sum() -> None:
    found = of("get_soft_overlong_punishment", "think_format_reward", reward_weights=[0.5, 2.0])
    sample = Sample(output_text="<think>a</think>b", num_tokens=1152)
    assert grader_of(found).grade(sample, {}).reward == pytest.approx(0.5 * -0.5 + 2.0)


def test_rewards_normalised_one_by_one_are_gdpo() -> None:
    names = ("accuracy_reward", "get_soft_overlong_punishment")
    found = of(*names, reward_weights=[1.0, 0.5], multi_objective_aggregation="normalize_then_sum")
    grader = grader_of(found).model_dump()
    assert (grader["aggregation"], grader["weights"]) == ("gdpo", dict(zip(names, (1.0, 0.5), strict=True)))
    assert found.job["method"]["reinforcement"]["hyperparameters"]["advantage"] == "gdpo"


@pytest.mark.parametrize("item", [CONVERSATION, {"prompt": "2+2?"}], ids=["conversation", "text"])
def test_a_python_function_is_called_as_trl_calls_it(item: dict[str, Any]) -> None:
    source, note = wrapped(SHORT, "short")
    row = {name: value for name, value in item.items() if name != "messages"} | {"answer": "4"}
    assert [run(source, text, row) for text in ("4", "5", "it is 4")] == [1.0, 0.0, 0.0]
    assert note.endswith("the rows need answer")


def test_a_python_function_grades_in_the_sandbox() -> None:
    grader = grader_of(of("rewards.short", sources={"rewards.short": SHORT}))
    assert grader.grade(Sample(output_text="4"), {"answer": "4"}).reward == 1.0
    assert grader.grade(Sample(output_text="5"), {"answer": "4"}).reward == 0.0


def test_a_function_that_returns_none_leaves_the_completion_unscored() -> None:
    source, _ = wrapped("def f(completions, **kwargs):\n    return [None]\n", "f")
    assert run(source, "4", {}) is None


def test_a_bool_is_the_number_that_trl_makes_of_it() -> None:
    source = (
        "def right(completions, answer, **kwargs):\n    return [text == answer[0] for text in completions]\n"
    )
    grader = grader_of(of("m.right", sources={"m.right": source}))
    graded = [grader.grade(Sample(output_text=text), {"prompt": "2+2?", "answer": "4"}) for text in "45"]
    assert [(each.reward, each.errors) for each in graded] == [(1.0, {}), (0.0, {})]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import numpy as np\ndef f(completions): return [0.0]", "numpy"),
        ("from .mine import g\ndef f(completions): return [0.0]", "mine"),
        ("async def f(completions): return [0.0]", "async"),
        ("def g(completions): return [0.0]", "no function f"),
        ("def f(completions, completion_ids): return [0.0]", "completion_ids"),
        ("def f(completions, environments): return [0.0]", "grader of type environment"),
        ("def grade(a, b): ...\ndef f(completions): return [0.0]", "grade"),
        ("def f(completions, /): return [0.0]", "by name"),
        ("def f(:", "line 1"),
    ],
)
def test_an_unsupported_function_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        wrapped(source, "f")
    (line,) = [line for line in of("m.f", sources={"m.f": source}).lines if line.verdict == "refused"]
    assert reason in line.why


def test_a_job_without_any_reward_is_refused() -> None:
    found = of()
    assert [line.fields for line in found.lines if line.verdict == "refused"] == [("reward_funcs",)]


def test_verl_s_function_gets_verl_s_arguments() -> None:
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    return float(ground_truth in solution_str and data_source == 'gsm8k')\n"
    graded, _ = wrapped_verl(source, "reward.py:compute_score")
    row = {"data_source": "gsm8k", "reward_model": {"ground_truth": "4"}}
    assert run(graded, "it is 4", row) == 1.0
    assert run(graded, "it is 4", row | {"data_source": "math"}) == 0.0
    with pytest.raises(Refusal, match="needs tokenizer"):
        wrapped_verl("def f(tokenizer): return 0.0", "reward.py:f")


@pytest.mark.parametrize("result", ["{'score': right, 'acc': right, 'pred': '4'}", "right"])
def test_only_the_score_of_verl_s_function_reaches_the_grader(result: str) -> None:
    source = (
        f"def f(solution_str, ground_truth):\n    right = ground_truth in solution_str\n    return {result}\n"
    )
    graded, _ = wrapped_verl(source, "reward.py:f")
    grader = PythonGrader(type="python", source=graded)
    score = grader.grade(Sample(output_text="it is 4"), {"reward_model": {"ground_truth": "4"}})
    assert (score.reward, score.errors) == (1.0, {})
