"""Jobs with environments through the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import ProbeSize, RunConfig
from grpo_engine.contract.errors import DatasetError
from grpo_engine.contract.events import Evaluated, Probed, RolloutsRecorded, StepFinished, StepSkipped
from grpo_engine.run.build import build_loop
from tests.engine.conftest import write_rows
from tests.support.openenv.server import OpenEnvServer

pytestmark = pytest.mark.usefixtures("allowed")

MakeJob = Callable[..., RunConfig]
HELD_OUT = 16
"""Held-out rows of each environment."""


GAMES = {"sevens": ("7777777777", "a"), "dots": ("..........", "b")}
"""Environment → its rows' prompt and the letter that it rewards. Different prompts are learned in fewer steps
than equal ones, with which only the observations `spell a` and `spell b` differ."""


@pytest.fixture
def job(make_config: Callable[..., RunConfig], tmp_path: Path, words: OpenEnvServer) -> MakeJob:
    """A job over two environments, which want different letters."""

    def job(rows: list[dict[str, Any]] | None = None, **hyperparameters: Any) -> RunConfig:
        given = {"stop": ["a", "b", "c", "d"], "max_completion_tokens": 120, "beta": 0.0}
        data = make_config(**given, **hyperparameters).model_dump(mode="json")
        method = data["method"]["reinforcement"]
        own = {"type": "openenv", "url": words.url, "timeout_seconds": 60.0}
        method["environments"] = {
            name: {**own, "reset": {"word": letter}} for name, (_, letter) in GAMES.items()
        }
        del method["grader"]
        made = rows or [
            {"messages": [{"role": "user", "content": prompt}], "environment": name}
            for name, (prompt, _) in GAMES.items()
        ]
        data["training_file"] = str(write_rows(tmp_path / "games.jsonl", made * 4))
        data["validation_file"] = str(write_rows(tmp_path / "held_out.jsonl", made * HELD_OUT))
        return RunConfig.model_validate(data)

    return job


def test_a_job_over_two_environments_learns_the_task_of_each(job: MakeJob, tmp_path: Path) -> None:
    config = job(
        n_steps=16,
        prompts_per_step=4,
        group_size=16,
        learning_rate=4e-3,
        lora="full",
        eval_interval=16,
        eval_temperature=1.0,
    )
    events = list(build_loop(config, tmp_path / "run").run(lambda: False))
    before, *_, after = [each.metrics for each in events if isinstance(each, Evaluated)]
    for place in [f"environments/{name}" for name in GAMES]:
        change = after[f"{place}/reward"] - before[f"{place}/reward"]
        low, high = after[f"{place}/difference_low"], after[f"{place}/difference_high"]
        assert after[f"{place}/difference"] == pytest.approx(change)
        assert 0.2 < low < change < high
        assert after[f"{place}/reward"] > 0.7
        assert after[f"{place}/failure_rate"] == 0.0
        assert after[f"{place}/turns_mean"] == 1.0
    tasks: dict[int, list[int]] = {0: [], 16: []}
    for each in events:
        if isinstance(each, RolloutsRecorded) and each.split == "validation":
            episodes = [completion.episode for group in each.groups for completion in group.completions]
            tasks[each.step] += [episode.seed for episode in episodes if episode]
    assert tasks[0] == tasks[16] != []
    recorded = [each for each in events if isinstance(each, RolloutsRecorded) and each.split == "train"]
    for group in recorded[0].groups:
        episodes = [each.episode for each in group.completions]
        assert len({each.seed for each in episodes if each}) == 1
        for completion in group.completions:
            assert completion.episode is not None
            assert completion.reward == completion.episode.reward
            assert len(completion.episode.turns) <= completion.turns


def test_a_probe_counts_the_turns_of_its_episodes(job: MakeJob, tmp_path: Path) -> None:
    config = job().model_copy(update={"probe": ProbeSize(prompts=2)})
    events = list(build_loop(config, tmp_path / "run").run(lambda: False))
    recorded = [each for each in events if isinstance(each, RolloutsRecorded)]
    episodes = [one.episode for each in recorded for group in each.groups for one in group.completions]
    assert isinstance(events[-1], Probed)
    assert events[-1].completions == len(episodes) == 8
    assert events[-1].turns == sum(len(each.turns) for each in episodes if each is not None)


def test_a_prompt_whose_sessions_fail_does_not_rest_as_hopeless(job: MakeJob, tmp_path: Path) -> None:
    message = {"role": "user", "content": "Play."}
    rows = [
        {"messages": [message], "environment": "sevens", "reset": {"behave": behave}}
        for behave in ("raise", "")
    ]
    config = job(rows, n_steps=1, prompts_per_step=8, group_size=2, curriculum="rest")
    events = list(build_loop(config, tmp_path / "run").run(lambda: False))
    (finished,) = [each for each in events if isinstance(each, StepFinished | StepSkipped)]
    recorded = [each for each in events if isinstance(each, RolloutsRecorded) and each.split == "train"]
    rewards = [{one.reward for one in group.completions} for each in recorded for group in each.groups]
    assert rewards.count({None}) == 4
    assert finished.metrics["curriculum/hopeless"] == rewards.count({0.0})


def test_a_row_of_an_unknown_environment_is_refused_before_training(job: MakeJob, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "Play."}], "environment": "chess"}] * 2
    with pytest.raises(DatasetError, match="row 1: environment is 'chess', not one of sevens, dots"):
        build_loop(job(rows), tmp_path / "run")
