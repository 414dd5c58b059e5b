"""Guards: what trips them, how often they act, and what each action does to a real run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from grpo_engine.config.guards import (
    DEFAULT_THRESHOLDS,
    PLATEAU_STEPS,
    SHARES,
    START_STEPS,
    Guard,
    TrippedGuard,
    Watch,
    default_guards,
    restarted,
    watch,
)
from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import (
    BaseEvent,
    CheckpointSaved,
    Evaluated,
    Finished,
    StepFinished,
    Stopped,
    Warned,
)
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.objective.metrics import length_correlation
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.rollout.scoring import with_zero_advantages
from grpo_engine.run.build import build_loop
from tests.engine.conftest import parameters_of, sum_rows, write_rows


def alarms_of(guard: Guard, rows: Sequence[dict[str, float]]) -> list[TrippedGuard]:
    """All alarms of a guard over the steps' metrics."""
    state: dict[str, Any] = {}
    found: list[TrippedGuard] = []
    for step, metrics in enumerate(rows, 1):
        alarms, state = watch([guard], step, metrics, state)
        found += alarms
    return found


LENGTH = {"completions/mean_length": 100.0}
ERRORS = ({"rewards/a/error_rate": 0.0, "rewards/b/error_rate": 0.2}, {"rewards/a/error_rate": 0.05})
CORRELATION = "completions/reward_length_correlation"
DIFFERENCE = "sampling/sampling_logp_difference/mean"
BREACHES: list[tuple[Watch, dict[str, float], dict[str, float], float]] = [
    ("kl", LENGTH | {"kl": 0.11}, LENGTH | {"kl": 0.09}, 11.0),
    ("no_signal", {"frac_reward_zero_std": 0.8}, {"frac_reward_zero_std": 0.75}, 0.8),
    ("truncation", {"completions/clipped_ratio": 0.5}, {"completions/clipped_ratio": 0.4}, 0.5),
    ("grader_errors", *ERRORS, 0.2),
    ("reward_length", {CORRELATION: 0.9}, {CORRELATION: -0.9}, 0.9),
    ("sampler_difference", {DIFFERENCE: 0.1}, {DIFFERENCE: 0.05}, 0.1),
]


def test_failed_calls_of_tools_are_not_grader_errors() -> None:
    guard = Guard(watch="grader_errors", patience=1)
    assert alarms_of(guard, [{"rewards/a/error_rate": 0.0, "tools/error_rate": 1.0}] * 9) == []


@pytest.mark.parametrize(("name", "bad", "good", "value"), BREACHES)
def test_a_guard_trips_after_its_patience_and_not_before(
    name: Watch, bad: dict[str, float], good: dict[str, float], value: float
) -> None:
    guard = Guard(watch=name, patience=3)
    assert alarms_of(guard, [bad, bad]) == []
    assert alarms_of(guard, [good] * 20) == []
    assert alarms_of(guard, [bad, bad, good, bad, bad]) == []
    (alarm,) = alarms_of(guard, [good, bad, bad, bad])
    assert (alarm.step, alarm.value, alarm.code) == (4, pytest.approx(value), f"guard_{name}")


def test_a_guard_acts_once_per_episode() -> None:
    guard = Guard(watch="truncation", patience=2)
    bad, good = {"completions/clipped_ratio": 0.9}, {"completions/clipped_ratio": 0.1}
    assert [alarm.step for alarm in alarms_of(guard, [bad] * 6 + [good] + [bad] * 3)] == [2, 9]


def test_a_step_without_the_metric_neither_trips_nor_recovers() -> None:
    guard = Guard(watch="kl", patience=2)
    bad = LENGTH | {"kl": 1.0}
    assert [alarm.step for alarm in alarms_of(guard, [bad, {}, {}, bad])] == [4]


def test_entropy_is_measured_against_the_start() -> None:
    guard = Guard(watch="entropy", patience=2)
    start = [{"entropy": 2.0}] * START_STEPS
    assert alarms_of(guard, [*start, {"entropy": 0.21}, {"entropy": 0.21}]) == []
    (alarm,) = alarms_of(guard, [*start, {"entropy": 0.2}, {"entropy": 0.1}])
    assert (alarm.step, alarm.value) == (START_STEPS + 2, pytest.approx(0.05))
    assert alarms_of(guard, [{"entropy": 0.01}] * 10) == []


def test_a_reward_that_no_longer_rises_is_a_plateau() -> None:
    guard = Guard(watch="reward_plateau", patience=1)
    rising = [{"reward": step / 1000} for step in range(2 * PLATEAU_STEPS)]
    assert alarms_of(guard, rising) == []
    flat = [{"reward": 0.5}] * PLATEAU_STEPS
    assert [alarm.step for alarm in alarms_of(guard, flat)] == [PLATEAU_STEPS]
    assert alarms_of(guard, flat[:-1]) == []


def test_the_jobs_own_threshold_counts() -> None:
    metrics = [{"completions/clipped_ratio": 0.2}]
    assert alarms_of(Guard(watch="truncation", threshold=0.1, patience=1), metrics) != []
    assert alarms_of(Guard(watch="truncation", patience=1), metrics) == []


def test_the_default_threshold_is_shown_and_validating_again_changes_nothing() -> None:
    shown = Guard.model_validate({"watch": "kl"}).model_dump()
    assert shown == {"watch": "kl", "threshold": 10.0, "patience": 5, "action": "warn"}
    assert Guard.model_validate(shown) == Guard(watch="kl")
    assert Guard.model_validate({"watch": "kl", "threshold": None}).threshold == 10.0


@pytest.mark.parametrize(
    ("rewards", "lengths", "expected"),
    [
        ((0.0, 0.5, 1.0), (10, 20, 30), 1.0),
        ((1.0, 0.5, 0.0), (10, 20, 30), -1.0),
        ((0.0, None, 1.0, 0.0), (10, 500, 30, 30), 0.5),
        ((0.0, 2e-200, 4e-200), (10, 20, 30), 1.0),
        ((1.0, 1.0), (10, 20), None),
        ((0.0, 1.0), (10, 10), None),
        ((None, 1.0), (10, 20), None),
    ],
)
def test_reward_and_length_are_correlated_over_the_scored_completions(
    rewards: Sequence[float | None], lengths: Sequence[int], expected: float | None
) -> None:
    completions = tuple(Completion("", (1,) * n, (0.0,) * n, FinishReason.STOP, 0) for n in lengths)
    scores = tuple(Score(reward=reward) for reward in rewards)
    group = with_zero_advantages(GradedGroup(Group(Prompt(0, "", (1,), {}), completions), scores))
    found = length_correlation([group]).get("completions/reward_length_correlation")
    assert found == (None if expected is None else pytest.approx(expected))


def test_after_a_pause_counters_restart_and_measurements_are_kept() -> None:
    guards = [Guard(watch="entropy", patience=9)]
    state: dict[str, Any] = {}
    for step in range(1, START_STEPS + 3):
        _, state = watch(guards, step, {"entropy": 1.0 if step <= START_STEPS else 0.0}, state)
    assert state["counts"] == [2]
    assert restarted(state) == {"counts": [0], "entropies": [1.0] * START_STEPS}


def test_every_rule_has_a_default_a_measure_and_texts() -> None:
    assert set(DEFAULT_THRESHOLDS) == set(get_args(Watch)) == {guard.watch for guard in default_guards()}
    fields = (
        "beta", "group_size", "epsilon_high", "max_completion_tokens", "grader", "n_steps", "grader",
        "importance_correction",
    )  # fmt: skip
    for guard, field in zip(default_guards(), fields, strict=True):
        message = TrippedGuard(guard, 12, 0.95).message
        assert message.startswith(("The ", "In 95%", "95%", "A grader", "Reward"))
        limit = f"{100 * guard.limit:.3g}%" if guard.watch in SHARES else f"{guard.limit:.3g}"
        assert f"(limit {limit}) for 5 steps in a row, up to step 12." in message
        assert field in message.split("up to step 12.")[1]


ALWAYS = {"watch": "truncation", "threshold": 0.0, "patience": 2}
"""Trips in every run."""


def run(config: RunConfig, folder: Path) -> list[BaseEvent]:
    return list(build_loop(config, folder).run(lambda: False))


def of(events: Sequence[BaseEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_warning_states_the_observation_and_the_field_to_change(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    too_late = {**ALWAYS, "patience": 3, "action": "pause"}
    warning, last = of(run(make_config(guards=[ALWAYS, too_late]), tmp_path), Warned)
    assert (warning.code, warning.step) == ("guard_truncation", 2)
    assert (last.step, "paused" in last.message) == (3, False)
    assert "of the completions were cut at max_completion_tokens (limit 0%)" in warning.message
    assert "Raise max_completion_tokens" in warning.message


def test_raise_beta_doubles_beta_from_the_next_step_on(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=4, beta=0.05, guards=[{**ALWAYS, "action": "raise_beta"}])
    loop = build_loop(config, tmp_path)
    events = list(loop.run(lambda: False))
    betas = [event.metrics["beta"] for event in of(events, StepFinished)]
    assert betas == [0.05, 0.05, 0.1, 0.1]
    assert of(events, Warned)[0].message.endswith("beta is now 0.1.")
    assert loop.raise_beta is not None
    assert loop.raise_beta() == 0.2


def test_a_guards_pause_leaves_a_checkpoint_and_waits_its_patience_again(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=5, guards=[{**ALWAYS, "action": "pause"}])
    ends = [run(config, tmp_path)[-2:] for _ in range(3)]
    assert [type(event) for event in ends[0]] == [CheckpointSaved, Stopped]
    assert [(end[1].step, getattr(end[1], "reason", "")) for end in ends] == [  # type: ignore[attr-defined]
        (2, "guard"),
        (4, "guard"),
        (5, ""),
    ]
    assert isinstance(ends[2][1], Finished)


def test_a_guards_pause_does_not_change_the_result(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    paused = make_config(n_steps=3, guards=[{**ALWAYS, "action": "pause"}])
    run(paused, tmp_path / "paused")
    resumed = build_loop(paused, tmp_path / "paused")
    list(resumed.run(lambda: False))
    whole = build_loop(make_config(n_steps=3, guards=[ALWAYS]), tmp_path / "whole")
    list(whole.run(lambda: False))
    left, right = parameters_of(resumed.method), parameters_of(whole.method)
    assert all(bool((left[name] == right[name]).all()) for name in left)


def test_a_guards_stop_evaluates_and_finishes_early(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    held_out = write_rows(tmp_path / "held_out.jsonl", sum_rows(5))
    config = make_config(n_steps=6, eval_interval=4, guards=[{**ALWAYS, "action": "stop"}])
    events = run(config.model_copy(update={"validation_file": str(held_out)}), tmp_path)
    assert [(event.step, event.is_final) for event in of(events, Evaluated)] == [(0, False), (2, True)]
    assert of(events, Warned)[0].message.endswith("Training ends after step 2.")
    (finished,) = of(events, Finished)
    assert finished.step == 2
    assert (tmp_path / finished.path / "adapter_model.safetensors").exists()


def test_a_run_that_stopped_early_does_not_continue_when_resumed(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=6, guards=[{**ALWAYS, "action": "stop"}])
    run(config, tmp_path)
    again = run(config, tmp_path)
    assert [event.step for event in of(again, Finished)] == [2]
    assert of(again, StepFinished) == []
