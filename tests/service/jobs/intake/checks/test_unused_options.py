"""Options without effect: limits of turns, punishments of process rewards, options of a loss left out."""

from typing import Any

import pytest

from grpo_engine.config.job import Reinforcement
from service.jobs.intake.checks.unused_options import warn_of_unused_options
from service.jobs.intake.report import Report

GAME = {"game": {"type": "openenv", "url": "https://games.example.com"}}
FORMAT = {"type": "format", "pattern": "x"}
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
    assert warnings({"max_turns": max_turns}, **given) == ([] if expected is None else [expected])


def test_an_overlong_punishment_of_process_rewards_causes_a_warning() -> None:
    options = {"overlong_buffer_tokens": 4, "overlong_penalty": 2}
    process = {"type": "process", "grader": FORMAT}
    assert warnings(options, grader=process) == []
    assert warnings({**options, "advantage": "process"}, grader=process) == [
        "overlong_buffer_tokens has no effect: process advantages come from the rewards of the steps, "
        "without the punishment."
    ]


def test_options_of_the_grpo_loss_cause_warnings_if_self_distillation_leaves_it_out() -> None:
    options = {"beta": 0, "loss_type": "sapo", "entropy_coef": 0.1, "num_iterations": 2}
    assert warnings({**options, "self_distillation": {}}) == []
    assert warnings({**options, "self_distillation": {"alone": True}}) == [
        "loss_type has no effect: self_distillation.alone leaves out the GRPO loss.",
        "entropy_coef has no effect: self_distillation.alone leaves out the GRPO loss.",
    ]


def test_a_correction_of_a_policy_that_lags_behind_causes_a_warning() -> None:
    options = {"importance_correction": "token_truncate", "importance_cap": 2}
    assert warnings(options) == []
    reason = "with max_staleness 1 the ratio of the loss contains the correction from step 2 on."
    assert warnings({**options, "max_staleness": 1}) == [
        f"importance_correction has no effect: {reason}",
        f"importance_cap has no effect: {reason}",
    ]
    assert warnings({"max_staleness": 1}) == []


def test_more_iterations_of_a_loss_without_ratio_cause_a_warning() -> None:
    assert warnings({"recipe": "rloo"}) == []
    (warning,) = warnings({"recipe": "rloo", "num_iterations": 2})
    assert warning.startswith("num_iterations: reinforce has no ratio to the policy that sampled")


def warnings(hyperparameters: dict[str, Any], **given: Any) -> list[str]:
    """Messages about a reinforcement method with held-out rows."""
    options = {"grader": FORMAT, "hyperparameters": hyperparameters, **given}
    method = Reinforcement.model_validate({"type": "reinforcement", "reinforcement": options})
    report = Report(method)
    warn_of_unused_options(report, True)
    return [each["message"] for each in report.warnings]
