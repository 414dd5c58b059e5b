"""The real scorers of Reasoning Gym in the sandbox: the suite's own scores, and hostile answers."""

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from grpo_engine.contract.records import Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.suites import reasoning_gym
from grpo_engine.graders.suites.reasoning_gym import ReasoningGym
from service.suites.__main__ import _rows, _suite
from service.suites.models import ReasoningGymDataset


@pytest.fixture(autouse=True, scope="module")
def _ended() -> Iterator[None]:
    yield
    reasoning_gym._server(reasoning_gym.os.getpid()).close()


@cache
def items(task: str, **more: Any) -> list[dict[str, Any]]:
    """Rows as graders see them; made in this process, which saves the import in a process for each task."""
    dataset = ReasoningGymDataset(type="reasoning_gym", task=task, size=2, **more)
    with warnings.catch_warnings(action="ignore"):  # of its libraries, when they are imported
        rows = [row for row, _ in _rows(dataset, _suite())]
    return [{name: value for name, value in row.items() if name != "messages"} for row in rows]


def score(text: str, item: dict[str, Any], **fields: Any) -> Score:
    return ReasoningGym(type="reasoning_gym", **fields).grade(make_sample(text), item)


@pytest.mark.parametrize(
    "task",
    [
        "chain_sum",
        "countdown",
        "arc_agi",
        "zebra_puzzles",
        "spell_backward",
        "time_intervals",
        "n_queens",
        "game_of_life",
    ],
)
def test_the_suites_own_answer_gets_the_full_score_and_nonsense_does_not(task: str) -> None:
    item = items(task)[0]
    assert score(item["answer"], item).reward == 1.0
    assert (score("nonsense", item).reward or 0.0) < 0.3


def test_partial_credit_is_the_tasks_own() -> None:
    item = {**items("chain_sum")[0], "answer": "42"}
    assert score("42.0", item).reward == 1.0
    assert score("it is 42", item).reward == 2 / 8
    assert score("41", item).reward == 0.0


def test_a_tasks_options_and_level_are_those_of_its_row() -> None:
    harder = {**items("chain_sum")[0], "level": 3}
    assert score(harder["answer"], harder).reward == 1.0
    unknown = {**harder, "reasoning_gym": {**harder["reasoning_gym"], "config": {"max_term": 3}}}
    assert score(harder["answer"], unknown).errors["reasoning_gym"].code == "python_grader_runtime_error"


def test_with_a_tag_only_its_inside_counts() -> None:
    item = {**items("chain_sum")[0], "answer": "42"}
    assert score("41? <answer>42</answer>", item, tag="answer").reward == 1.0
    missing = score("42", item, tag="answer")
    assert (missing.reward, missing.feedback) == (0.0, "no <answer>…</answer>")


def test_a_row_of_another_dataset_cannot_be_scored() -> None:
    grader = ReasoningGym(type="reasoning_gym")
    assert grader.problems({"answer": "42"}) == ["it is not a row of a `dataset` of the type reasoning_gym"]
    assert score("42", {"answer": "42"}).errors["reasoning_gym"].code == "invalid_variable_error"
    assert grader.problems(items("chain_sum")[0]) == []


def test_an_answer_that_is_evaluated_stays_in_the_sandbox() -> None:
    item = items("string_insertion")[0]
    sees = "[{answer!r} if {condition} else 'nothing']"
    for condition in (
        "True",
        "not __import__('os').path.exists('/etc/passwd')",
        f"not open({__file__!r}).read()",
    ):
        expected = 0.0 if "open" in condition else 0.1  # a list of characters gets 0.1
        assert score(sees.format(answer=item["answer"], condition=condition), item).reward == expected


def test_an_answer_that_hangs_its_scorer_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym, "SCORE_SECONDS", 2.0)
    item = items("string_insertion")[0]
    late = score("[str(9**9**9)]", item)
    assert (late.reward, late.feedback) == (0.0, "scoring the answer took more than 2 s")
    assert score(item["answer"], item).reward == 1.0
