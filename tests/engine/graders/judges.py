"""A scripted judge as the operator's endpoint, and completions that it scores."""

from collections.abc import Callable
from typing import Any

from grpo_engine.contract.records import Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.rules.score_model import ScoreModel
from tests.support.chat_server import ChatServer

KEY = "sk-canary-4711-do-not-tell"
QUESTION = "Is {{sample.output_text}} close to {{item.answer}}?"
GRADER: dict[str, Any] = {
    "type": "score_model",
    "model": "judge",
    "input": [{"role": "user", "content": QUESTION}],
}
NOW = {"Retry-After": "0"}

Judge = Callable[..., ChatServer]
"""`judge(answer, **endpoint)`: starts a judge that answers so, as the operator's endpoint "default"."""


def score(text: str = "4", item: dict[str, Any] | None = None, **fields: Any) -> Score:
    grader = ScoreModel.model_validate({**GRADER, **fields})
    return grader.grade(make_sample(text), item or {"answer": "5"})


def error(found: Score) -> tuple[str, str]:
    assert found.reward is None
    problem = found.errors["score_model"]
    return problem.code, problem.message
