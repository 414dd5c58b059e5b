"""Jobs with environments through the engine."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import DatasetError
from grpo_engine.contract.events import Evaluated, RolloutsRecorded
from grpo_engine.run.build import build_loop
from tests.engine.conftest import write_rows
from tests.support.openenv.server import OpenEnvServer

pytestmark = pytest.mark.usefixtures("allowed")

MakeJob = Callable[..., RunConfig]


@pytest.fixture
def job(make_config: Callable[..., RunConfig], tmp_path: Path, words: OpenEnvServer) -> MakeJob:
    """A job over two environments of one server, which want the same letter."""

    def job(rows: list[dict[str, Any]] | None = None, **hyperparameters: Any) -> RunConfig:
        given = {"stop": ["a", "b", "c", "d"], "max_completion_tokens": 120, "beta": 0.0}
        data = make_config(**given, **hyperparameters).model_dump(mode="json")
        own = {"type": "openenv", "url": words.url, "timeout_seconds": 10.0}
        method = data["method"]["reinforcement"]
        method["environments"] = {
            "first": {**own, "reset": {"word": "a"}},
            "second": {**own, "reset": {"word": "a"}},
        }
        del method["grader"]
        made = rows or [
            {"messages": [{"role": "user", "content": "Play."}], "environment": name}
            for name in ("first", "second") * 4
        ]
        data["training_file"] = str(write_rows(tmp_path / "games.jsonl", made))
        data["validation_file"] = str(write_rows(tmp_path / "held_out.jsonl", made[:2]))
        return RunConfig.model_validate(data)

    return job


def rewards_of(events: list[RolloutsRecorded], environment: str) -> list[float]:
    """All rewards that completions earned in an environment."""
    completions = [each for event in events for group in event.groups for each in group.completions]
    return [
        each.reward
        for each in completions
        if each.reward is not None and each.episode is not None and each.episode.environment == environment
    ]


def test_rewards_rise_in_both_environments_of_a_job(job: MakeJob, tmp_path: Path) -> None:
    config = job(n_steps=20, prompts_per_step=4, group_size=16, learning_rate=2e-3, lora="full")
    events = list(build_loop(config, tmp_path / "run").run(lambda: False))
    recorded = [each for each in events if isinstance(each, RolloutsRecorded) and each.split == "train"]
    for name in ("first", "second"):
        before, after = rewards_of(recorded[:5], name), rewards_of(recorded[-5:], name)
        assert fmean(after) > fmean(before) + 0.2
    held_out = [each.metrics for each in events if isinstance(each, Evaluated)][-1]
    for name in ("first", "second"):
        assert held_out[f"environments/{name}/reward"] == 1.0
        assert held_out[f"environments/{name}/failure_rate"] == 0.0
        assert held_out[f"environments/{name}/turns_mean"] == 1.0
    for group in recorded[0].groups:
        episodes = [each.episode for each in group.completions]
        assert len({each.seed for each in episodes if each}) == 1
        for completion in group.completions:
            assert completion.episode is not None
            assert completion.reward == completion.episode.reward
            assert len(completion.episode.turns) <= completion.turns


def test_a_row_of_an_unknown_environment_is_refused_before_training(job: MakeJob, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "Play."}], "environment": "chess"}] * 2
    with pytest.raises(DatasetError, match="row 1: environment is 'chess', not one of first, second"):
        build_loop(job(rows), tmp_path / "run")
