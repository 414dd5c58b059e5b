"""Limits of turns that leave a job's tools unused, or that the environments replace."""

from typing import Any

import pytest

from grpo_engine.config.job import Reinforcement
from service.jobs.intake.checks.idle_options import warn_of_idle_options

GAME = {"game": {"type": "openenv", "url": "https://games.example.com"}}
PYTHON = [{"type": "python"}]


@pytest.mark.parametrize(
    ("max_turns", "given", "expected"),
    [
        (
            1,
            {"tools": PYTHON},
            "tools have no effect: max_turns is 1, and calls of the last turn are not run.",
        ),
        (2, {"tools": PYTHON}, None),
        (4, {"environments": GAME}, "max_turns has no effect: each environment has its own."),
        (
            1,
            {"environments": GAME, "tools": PYTHON},
            "max_turns has no effect: each environment has its own.",
        ),
    ],
)
def test_a_limit_of_turns_without_effect_causes_a_warning(
    max_turns: int, given: dict[str, Any], expected: str | None
) -> None:
    grader = {"type": "format", "pattern": "x"}
    options = {"grader": grader, "hyperparameters": {"max_turns": max_turns}, **given}
    method = Reinforcement.model_validate({"type": "reinforcement", "reinforcement": options})
    found: list[str] = []
    warn_of_idle_options(method, True, lambda _code, message: found.append(message))
    assert found == ([] if expected is None else [expected])
