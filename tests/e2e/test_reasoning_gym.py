"""The example of the guide on task suites with few steps: its jobs run, and the suite scores unseen rows."""

from pathlib import Path

import pytest

from examples.reasoning_gym.learn import learn

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]


def test_the_jobs_of_the_example_run_and_the_suite_scores_unseen_rows(tmp_path: Path) -> None:
    before, after = learn(tmp_path, num_steps=3)
    assert 0.0 <= before <= 1.0
    assert 0.0 <= after <= 1.0
