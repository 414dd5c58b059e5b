"""The example of the guide on environments with few steps: its jobs run, its server scores held-out games."""

from pathlib import Path

import pytest

from examples.openenv_game.learn import learn

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]


def test_the_jobs_of_the_example_run_and_its_server_scores_held_out_games(tmp_path: Path) -> None:
    found = learn(tmp_path, num_steps=(40, 3))
    assert found["verdict"]["rows"] == 100
    last = found["last"]
    assert last["environments/guess/failure_rate"] == 0.0
    assert last["environments/guess/difference"] == found["verdict"]["difference"]
    assert 0.0 <= last["environments/guess/reward"] <= 1.0
    assert 1.0 <= last["environments/guess/turns_mean"] <= 4.0
