"""The example of the guide on task suites: a model learns a Reasoning Gym task, with the real engine."""

from pathlib import Path

import pytest

from examples.reasoning_gym.learn import NEEDED_RISE, learn

pytestmark = pytest.mark.slow


def test_a_small_model_learns_a_task_of_reasoning_gym(tmp_path: Path) -> None:
    before, after = learn(tmp_path)
    assert 0.0 < before < 0.8
    assert after - before >= NEEDED_RISE
