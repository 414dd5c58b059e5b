"""Evaluation: own graders, retention sets, verdicts, the best checkpoint, early stopping, exact resume."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.events import (
    BaseEvent,
    CheckpointSaved,
    Evaluated,
    Finished,
    RolloutsRecorded,
    Stopped,
    Warned,
    quality,
)
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.objective.significance import verdict_on
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt, ScoredGroup
from grpo_engine.rollout.evaluation import evaluation_metrics, rewards_by_row
from grpo_engine.rollout.scoring import with_zero_advantages
from grpo_engine.run.build import build_loop
from grpo_engine.training import checkpoint
from tests.engine.conftest import sum_rows, write_rows
from tests.engine.processes import adapter_sha256, crash_here, metric_lines, run_here
from tests.engine.processes import events as events_of

NOTHING = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "☃"}


@pytest.fixture
def make_job(make_config: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., RunConfig]:
    """A job with 6 held-out rows and, on request, a retention set and an own eval grader."""

    def make(*, eval_grader: Any = None, retention: bool = False, **hyperparameters: Any) -> RunConfig:
        config = make_config(**{"eval_interval": 2, **hyperparameters}).model_dump()
        config["validation_file"] = str(write_rows(tmp_path / "held_out.jsonl", sum_rows(6)))
        config["method"]["reinforcement"]["eval_grader"] = eval_grader
        if retention:
            config["method"]["reinforcement"]["retention"] = [
                {"name": "general", "file": "file-1", "grader": NOTHING},
                {"name": "other", "file": "file-2"},
            ]
            rows = write_rows(tmp_path / "general.jsonl", sum_rows(3))
            config["retention_files"] = {"general": str(rows), "other": str(rows)}
        return RunConfig.model_validate(config)

    return make


def run(config: RunConfig, folder: Path, until: int | None = None) -> list[BaseEvent]:
    """All events of a run that is stopped after step `until`."""
    trainer = build_loop(config, folder)
    return list(trainer.run(lambda: until is not None and trainer.state.step >= until))


def evaluated(events: Sequence[BaseEvent], name: str = "validation") -> list[Evaluated]:
    return [event for event in events if isinstance(event, Evaluated) and event.name == name]


def test_held_out_rows_are_scored_by_the_eval_grader(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    own = evaluated(run(make_job(n_steps=1, eval_grader=NOTHING), tmp_path / "own"))
    same = evaluated(run(make_job(n_steps=1, eval_temperature=1.0), tmp_path / "same"))
    assert [event.metrics["reward"] for event in own] == [0.0, 0.0]
    assert any("rewards/format/mean" in event.metrics for event in same)
    assert all("rewards/string_check/mean" in event.metrics for event in own)


def test_the_first_evaluation_has_no_verdict_and_the_last_is_final(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    found = evaluated(run(make_job(n_steps=4, eval_grader=NOTHING), tmp_path))
    assert [(event.step, event.is_final) for event in found] == [(0, False), (2, False), (4, True)]
    texts = [event.verdict.text if event.verdict else None for event in found]
    assert texts == [None, *["+0.000 (95% CI 0.000 to 0.000), not significant"] * 2]
    assert found[2].verdict is not None
    assert found[2].verdict.rows == 6


def test_retention_sets_are_evaluated_beside_the_held_out_rows(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    events = run(make_job(n_steps=2, retention=True), tmp_path)
    general, other = evaluated(events, "general"), evaluated(events, "other")
    assert [event.step for event in general] == [event.step for event in other] == [0, 2]
    assert general[1].metrics["num_rows"] == 3.0
    assert "rewards/string_check/mean" in general[1].metrics
    assert "rewards/format/mean" in other[1].metrics
    assert general[1].verdict is not None
    assert general[1].verdict.text == "+0.000 (95% CI 0.000 to 0.000), not significant"
    recorded = [e for e in events if isinstance(e, RolloutsRecorded) and e.split == "retention"]
    places = [(event.step, event.name, event.first, len(event.groups)) for event in recorded]
    assert places == [(0, "general", 0, 3), (0, "other", 3, 3), (2, "general", 0, 3), (2, "other", 3, 3)]


def test_a_retention_set_without_its_file_is_refused(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_job(retention=True).model_copy(update={"retention_files": {}})
    with pytest.raises(ConfigError, match="no file for the retention set 'general'"):
        build_loop(config, tmp_path)


def test_early_stopping_without_held_out_rows_is_refused(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="early_stopping needs validation_file"):
        build_loop(make_config(early_stopping={}), tmp_path)


def test_the_share_of_the_most_frequent_answer_is_counted_word_for_word() -> None:
    texts = ["billing", "billing\n", "sales", "Billing"]
    scored = [
        with_zero_advantages(
            GradedGroup(
                Group(Prompt(row, "", (1,), {}), (Completion(text, (1,), (0.0,), FinishReason.STOP, 0),)),
                (Score(reward=0.0),),
            )
        )
        for row, text in enumerate(texts)
    ]
    assert evaluation_metrics(scored)["most_frequent_answer"] == 0.5


def test_an_unscorable_row_is_in_neither_side_of_the_comparison() -> None:
    done = Completion("", (1,), (0.0,), FinishReason.STOP, 0)

    def scored(rewards: Sequence[float | None]) -> list[ScoredGroup]:
        return [
            with_zero_advantages(
                GradedGroup(Group(Prompt(row, "", (1,), {}), (done,)), (Score(reward=reward),))
            )
            for row, reward in enumerate(rewards)
        ]

    before, after = rewards_by_row(scored([0, 0, None, 0])), rewards_by_row(scored([1, None, 1, 1]))
    assert (before, after) == ({"0": 0, "1": 0, "3": 0}, {"0": 1, "2": 1, "3": 1})
    verdict = verdict_on(before, after)
    assert (verdict.rows, verdict.difference) == (2, 1.0)


def test_an_evaluation_is_as_good_as_its_reward_else_its_loss() -> None:
    assert quality({"reward": 0.25, "loss": 3.0}) == 0.25
    assert quality({"loss": 3.0}) == -3.0
    assert quality({"num_rows": 4.0}) == -math.inf


def test_every_new_best_policy_is_saved(make_job: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = make_job(n_steps=12, eval_interval=1, eval_temperature=1.0, checkpoint_interval=100)
    events = run(config, tmp_path)
    rewards = [event.metrics["reward"] for event in evaluated(events)]
    records = [step for step in range(1, 12) if rewards[step] > max(rewards[:step])]
    assert records
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [*records, 12]


def test_the_best_checkpoint_is_kept_whatever_comes_later(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    settings = {"eval_interval": 1, "eval_temperature": 1.0, "checkpoint_interval": 1, "max_checkpoints": 1}
    events = run(make_job(n_steps=12, **settings), tmp_path)
    rewards = [event.metrics["reward"] for event in evaluated(events)]
    best = rewards.index(max(rewards))
    assert 0 < best < 11, rewards
    kept = sorted(int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert kept == [best, 11, 12]
    assert isinstance(events[-1], Finished)
    assert (events[-1].best_step, events[-1].best_path) == (best, f"checkpoints/step-{best:08d}/adapter")


def test_a_best_policy_before_training_has_no_checkpoint(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    finished = run(make_job(n_steps=2, eval_grader=NOTHING), tmp_path)[-1]
    assert isinstance(finished, Finished)
    assert (finished.best_step, finished.best_path) == (0, None)


def test_retain_spares_the_best_checkpoint(tmp_path: Path) -> None:
    for step in range(1, 7):
        (tmp_path / checkpoint.step_name(step)).mkdir()
    (tmp_path / ".tmp-of-a-killed-run").mkdir()
    checkpoint.retain(tmp_path, 2, best_step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoint.step_name(n) for n in (3, 5, 6)]


def test_early_stopping_ends_a_run_that_no_longer_improves(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_job(n_steps=20, eval_interval=1, eval_grader=NOTHING, early_stopping={"patience": 3})
    events = run(config, tmp_path)
    assert [(event.step, event.is_final) for event in evaluated(events)][-2:] == [(2, False), (3, True)]
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert (warning.code, warning.step) == ("early_stopping", 3)
    assert warning.message.startswith(
        "The held-out reward did not rise by more than 0 in 3 evaluations in a row"
    )
    assert isinstance(events[-1], Finished)
    assert events[-1].step == 3


def test_a_rise_below_min_improvement_does_not_count(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    stopping = {"patience": 2, "min_improvement": 1000.0}
    trainer = build_loop(make_job(n_steps=20, early_stopping=stopping), tmp_path)
    for found, counted in ((0.1, 0), (0.5, 1), (-math.inf, 1), (0.4, 2)):
        trainer._compare_with_best(found)
        assert trainer.state.without_improvement == counted
    assert trainer.state.best_quality == 0.5
    assert trainer._compare_with_best(0.4) == [], "the training has ended already"


def test_after_a_resume_baseline_best_and_verdicts_are_as_without_one(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_job(n_steps=6, eval_temperature=1.0, retention=True, early_stopping={"patience": 9})
    whole = run(config, tmp_path / "whole")
    first = run(config, tmp_path / "parts", until=3)
    second = run(config, tmp_path / "parts")
    assert isinstance(first[-1], Stopped)
    for name in ("validation", "general", "other"):
        both = [*evaluated(first, name), *evaluated(second, name)]
        assert [event.step for event in both] == [0, 2, 4, 6]
        assert both == evaluated(whole, name)
    assert second[-1] == whole[-1]


def test_a_run_that_ends_suddenly_comes_to_the_same_verdict_and_the_same_weights(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    guards = [{"watch": "truncation", "threshold": 0.0, "patience": 3, "action": "raise_beta"}]
    job = make_job(n_steps=8, checkpoint_interval=2, beta=0.05, eval_temperature=1.0, guards=guards)
    run_here(job, tmp_path / "whole")
    crash_here(job, tmp_path / "broken", 5)
    run_here(job, tmp_path / "broken")
    assert metric_lines(tmp_path / "broken") == metric_lines(tmp_path / "whole")
    assert adapter_sha256(tmp_path / "broken", 8) == adapter_sha256(tmp_path / "whole", 8)
    ends = [conclusions(tmp_path / name) for name in ("broken", "whole")]
    assert ends[0] == ends[1]
    assert ends[0][0] is not None


def conclusions(run_dir: Path) -> tuple[Any, Any, Any]:
    """The last verdict, the best step and the state that a resumed run would start from."""
    found = events_of(run_dir)
    verdicts = [event["verdict"] for event in found if event["type"] == "evaluated"]
    state = json.loads((run_dir / "checkpoints" / "step-00000008" / "state.json").read_text())
    return verdicts[-1], found[-1]["best_step"], state
