"""Metrics of given scores, completions and episodes, and of this process."""

import subprocess
import sys

import pytest

from grpo_engine.contract.records import Episode, FinishReason, GradeError, Score
from grpo_engine.objective.metrics import (
    EXTREMES,
    completion_metrics,
    reward_metrics,
    tool_metrics,
    training_metrics,
)
from grpo_engine.objective.types import Completion, Group, Prompt, ScoredGroup

LARGE = 2**30
PEAK = """
import torch
from grpo_engine.objective.metrics import peak_memory_bytes
print(peak_memory_bytes(torch.device("cpu")))
"""


def scored(*scores: Score, has_signal: bool) -> ScoredGroup:
    completion = Completion("", (1,), (0.0,), FinishReason.STOP, 0)
    group = Group(Prompt(0, "", (1,), {}), (completion,) * len(scores))
    return ScoredGroup(group, scores, (0.0,) * len(scores), has_signal)


def test_rewards_are_averaged_over_scored_completions_and_passes_also_by_group() -> None:
    error = GradeError(code="python_grader_runtime_error", message="")
    failed = Score(reward=None, parts={"math": None}, errors={"math": error})
    solved, half, never = (Score(reward=r, parts={"math": 2 * r, "size": r}) for r in (1.0, 0.5, 0.0))
    found = reward_metrics([scored(solved, half, has_signal=True), scored(never, failed, has_signal=False)])
    assert found == {
        "reward": 0.5,
        "reward_std": 0.5,
        "frac_reward_zero_std": 0.5,
        "pass_at_1": pytest.approx(1 / 3),
        "pass_at_group": 0.5,
        "rewards/math/mean": 1.0,
        "rewards/math/std": 1.0,
        "rewards/math/error_rate": 0.25,
        "rewards/size/mean": 0.5,
        "rewards/size/std": 0.5,
        "rewards/size/error_rate": 0.0,
    }


def test_lengths_and_tool_calls_are_those_of_the_completions() -> None:
    calls = tuple({"error": failed} for failed in (False, True, False))
    long = Completion("", (1, 2, 3), (0.0,) * 3, FinishReason.LENGTH, 0, turns=4, tool_calls=calls)
    short = Completion("", (1,), (0.0,), FinishReason.STOP, 0)
    assert completion_metrics([long, short]) == {
        "completions/mean_length": 2.0,
        "completions/min_length": 1.0,
        "completions/max_length": 3.0,
        "completions/clipped_ratio": 0.5,
    }
    means = {"tools/calls_mean": 1.5, "tools/turns_mean": 2.5}
    assert tool_metrics([long, short]) == {**means, "tools/error_rate": pytest.approx(1 / 3)}
    assert tool_metrics([short]) == {"tools/calls_mean": 0.0, "tools/turns_mean": 1.0}


def test_a_steps_metrics_are_means_over_its_tokens_beside_the_loss_and_extremes() -> None:
    batches = [
        {"tokens": 1.0, "loss": 0.5, "kl": 2.0} | dict.fromkeys(EXTREMES, 1.0),
        {"tokens": 3.0, "loss": 0.25, "kl": 6.0} | dict.fromkeys(EXTREMES, 4.0),
    ]
    extremes = {name: extreme((1.0, 4.0)) for name, extreme in EXTREMES.items()}
    assert training_metrics(batches) == {"loss": 0.75, "kl": 2.0, **extremes}
    assert sorted(extremes.values()) == [1.0, 4.0, 4.0]


def played(failure: str | None) -> Completion:
    """An episode that a limit or a failure ended."""
    episode = Episode(environment="words", seed=1, turns=(), reward=None, failure=failure)
    return Completion("a", (1,), (0.0,), FinishReason.LENGTH, 0, episode=episode)


def test_a_failed_session_is_not_counted_as_a_truncated_completion() -> None:
    completions = [played(None), played("connection closed"), played("connection closed")]
    assert completion_metrics(completions)["completions/clipped_ratio"] == 1 / 3


def test_peak_memory_excludes_the_memory_of_the_process_that_started_this_one() -> None:
    large = b"x" * LARGE
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert len(large) > float(done.stdout) > LARGE / 10
