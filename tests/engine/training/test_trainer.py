"""The step: invariance to how it is cut, exact skips, no wasted passes, a reward that rises."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ReinforcementHyperparameters, RunConfig
from grpo_engine.contract.errors import GraderError, NonFiniteError, NoSignalError
from grpo_engine.contract.events import (
    BaseEvent,
    CheckpointSaved,
    Finished,
    RolloutsRecorded,
    StepFinished,
    StepSkipped,
)
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt, ScoredGroup
from grpo_engine.rollout import recording
from grpo_engine.run.build import build_loop
from grpo_engine.training.skipped_steps import fail_without_signal
from tests.engine.conftest import FAMILIES, cut, largest_difference, parameters_of, trained

NOTHING = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "☃"}
CUTS = [{"token_budget": 10_000}, {"token_budget": 60}, {"token_budget": 16}, {"sample_budget": 4}]


def steps(events: list[BaseEvent]) -> list[dict[str, float]]:
    return [event.metrics for event in events if isinstance(event, StepFinished)]


def test_three_sampled_steps_do_not_depend_on_how_they_are_cut(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(beta=0.1, learning_rate=3e-4)
    found = [
        parameters_of(trained(cut(config, **runtime), tmp_path / str(index)))
        for index, runtime in enumerate(CUTS)
    ]
    start = parameters_of(build_loop(config, tmp_path / "start").method)
    assert largest_difference(start, found[0]) > 3e-4
    assert max(largest_difference(found[0], other) for other in found[1:]) < 1e-6


def test_three_steps_do_not_depend_on_sharing_the_prompt(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(beta=0.1)
    shared = trained(config, tmp_path / "shared")
    plain = build_loop(config, tmp_path / "plain")
    plain.method.policy.shares_prompts = False
    list(plain.run(lambda: False))
    assert largest_difference(parameters_of(shared), parameters_of(plain.method)) < 1e-6


def test_a_step_without_signal_moves_nothing_and_reports_it(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = build_loop(make_config(grader=NOTHING, beta=0.1), tmp_path).method
    before = parameters_of(trainer)
    events = list(trainer.step(1))
    assert largest_difference(before, parameters_of(trainer)) == 0.0
    skipped = [event for event in events if isinstance(event, StepSkipped)]
    assert [event.reason for event in skipped] == ["no_signal"]
    assert skipped[0].metrics["frac_reward_zero_std"] == 1.0
    assert trainer.state.policy_version == 0


def test_many_steps_without_signal_fail_the_job_with_the_reason(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = build_loop(make_config(grader=NOTHING, n_steps=9, max_skipped_steps=3), tmp_path)
    with pytest.raises(NoSignalError, match="3 steps in a row without signal, up to step 3") as caught:
        list(trainer.run(lambda: False))
    assert "mean reward of step 3: 0.000" in caught.value.evidence


def test_a_single_step_without_signal_is_named_alone(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = build_loop(make_config(grader=NOTHING, n_steps=9, max_skipped_steps=1), tmp_path)
    with pytest.raises(NoSignalError, match=r"^step 1 without signal$"):
        list(trainer.run(lambda: False))


def test_a_job_whose_completions_are_all_right_fails_with_the_hint_that_it_is_solved(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    always = {"type": "format", "pattern": "", "match": "search"}
    trainer = build_loop(make_config(grader=always, n_steps=9, max_skipped_steps=3), tmp_path)
    with pytest.raises(NoSignalError) as caught:
        list(trainer.run(lambda: False))
    assert "the model can do this already" in (caught.value.hint or "")


def test_steps_without_signal_in_which_most_tool_calls_failed_point_to_the_tools() -> None:
    calls = ({"error": True}, {"error": True}, {"error": False})
    completion = Completion("", (1,), (0.0,), FinishReason.STOP, 0, tool_calls=calls)
    group = Group(Prompt(0, "", (1,), {}), (completion,) * 2)
    scored = ScoredGroup(group, (Score(reward=0.0),) * 2, (0.0, 0.0), False)
    with pytest.raises(NoSignalError, match="3 steps in a row without signal") as caught:
        fail_without_signal(3, 3, [scored], ReinforcementHyperparameters(max_skipped_steps=3))
    assert "check the tools' server" in caught.value.hint
    assert caught.value.evidence == ("mean reward of step 3: 0.000", "failed tool calls of step 3: 67%")


def test_steps_in_which_nothing_was_scored_are_skipped_for_that_reason(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    raises = {"type": "python", "source": "def grade(sample, item):\n    return item['missing']"}
    config = make_config(grader=raises, n_steps=9, max_skipped_steps=2, max_grader_error_rate=1.0)
    with pytest.raises(NoSignalError, match="2 steps in a row without a scored completion") as caught:
        list(build_loop(config, tmp_path).run(lambda: False))
    assert "correct the grader or the environment" in caught.value.hint
    assert caught.value.evidence == ()


def test_a_group_without_signal_leaves_the_others_update_as_it_was(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    events = list(build_loop(make_config(prompts_per_step=8), tmp_path).method.step(1))
    (rollouts,) = [event for event in events if isinstance(event, RolloutsRecorded)]
    dead = [group for group in rollouts.groups if not group.has_signal]
    alive = [group for group in rollouts.groups if group.has_signal]
    assert dead
    assert alive
    assert all(c.advantage == 0.0 for group in dead for c in group.completions)
    assert all(any(c.advantage != 0 for c in group.completions) for group in alive)


def test_a_large_steps_rollouts_take_several_events(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "EVENT_BYTES", 2500)
    events = list(build_loop(make_config(prompts_per_step=5), tmp_path).method.step(1))
    found = [event for event in events if isinstance(event, RolloutsRecorded)]
    assert len(found) > 2
    assert [event.first for event in found] == [
        sum(len(e.groups) for e in found[:n]) for n in range(len(found))
    ]
    assert sum(len(event.groups) for event in found) == 5


def test_without_beta_the_reference_is_never_run(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    run = Policy.reference_logprobs
    monkeypatch.setattr(
        Policy, "reference_logprobs", lambda self, *args: passes.append(1) or run(self, *args)
    )
    without = list(build_loop(make_config(beta=0.0), tmp_path / "a").method.step(1))
    assert passes == []
    with_beta = list(build_loop(make_config(beta=0.1), tmp_path / "b").method.step(1))
    assert len(passes) == 1
    assert "kl" not in steps(without)[0]
    assert steps(with_beta)[0]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_first_update_moves_the_policy_away_from_its_reference(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    metrics = steps(list(build_loop(make_config(beta=0.1), tmp_path).run(lambda: False)))
    assert [m["kl"] > 1e-6 for m in metrics] == [False, True, True]
    assert all(m["sampling/sampling_logp_difference/max"] < 1e-4 for m in metrics)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8}, "full"])
def test_every_family_trains_with_an_adapter_and_in_full(
    make_config: Callable[..., RunConfig], tmp_path: Path, family: str, lora: Any
) -> None:
    config = make_config(family=family, lora=lora, n_steps=2, beta=0.05)
    loop = build_loop(config, tmp_path)
    before = parameters_of(loop.method)
    events = list(loop.run(lambda: False))
    assert largest_difference(before, parameters_of(loop.method)) > 1e-4
    assert [type(event) for event in events][-2:] == [CheckpointSaved, Finished]
    kind = "model" if lora == "full" else "adapter"
    assert (tmp_path / "checkpoints" / "step-00000002" / kind).is_dir()


@pytest.mark.slow
def test_the_reward_rises(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = make_config(
        n_steps=25, group_size=8, prompts_per_step=8, learning_rate=3e-3, lora="full", beta=0.0
    )
    rewards = [m["reward"] for m in steps(list(build_loop(config, tmp_path).run(lambda: False)))]
    assert sum(rewards[:5]) / 5 < 0.75
    assert sum(rewards[-5:]) / 5 > 0.95


def test_a_grader_that_fails_on_most_completions_fails_the_job_with_evidence(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    broken = {
        "type": "string_check",
        "operation": "eq",
        "input": "{{sample.output_json.answer}}",
        "reference": "1",
    }
    with pytest.raises(GraderError, match="16 of 16 completions could not be scored") as caught:
        list(build_loop(make_config(grader=broken), tmp_path).method.step(1))
    assert re.match(r"row \d+: string_check: sample_parse_error: ", caught.value.evidence[0])


def test_a_non_finite_gradient_is_refused_before_anything_moves(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = build_loop(make_config(), tmp_path).method
    name, parameter = next(iter(trainer.policy.trainable.items()))
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    before = parameters_of(trainer)
    with pytest.raises(NonFiniteError, match="step 1: the gradient is not finite") as caught:
        list(trainer.step(1))
    assert largest_difference(before, parameters_of(trainer)) == 0.0
    assert f"gradient of {name}" in caught.value.evidence


def test_adapter_dropout_is_active_only_in_the_training_pass(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    lora = {"rank": 4, "alpha": 8, "dropout": 0.5}
    first = trained(make_config(lora=lora, n_steps=2), tmp_path / "a")
    again = trained(make_config(lora=lora, n_steps=2), tmp_path / "b")
    without = trained(make_config(lora={"rank": 4, "alpha": 8}, n_steps=2), tmp_path / "c")
    assert largest_difference(parameters_of(first), parameters_of(again)) == 0.0
    assert largest_difference(parameters_of(first), parameters_of(without)) > 1e-5
    assert not any(
        module.training for module in first.policy.model.modules() if "Dropout" in type(module).__name__
    )


def test_only_tokens_of_groups_with_signal_count_as_trained_each_time_they_are(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(num_iterations=2, group_size=2, prompts_per_step=8)
    events = list(build_loop(config, tmp_path).method.step(1))
    (metrics,) = steps(events)
    (groups,) = (event.groups for event in events if isinstance(event, RolloutsRecorded))
    lengths = [sum(len(one.token_ids) for one in group.completions) for group in groups if group.has_signal]
    assert 0 < len(lengths) < len(groups)
    assert metrics["num_trained_tokens"] == 2 * sum(lengths)
    rate = metrics["perf/trained_tokens_per_second"]
    assert rate * metrics["timing/train_seconds"] == pytest.approx(2 * sum(lengths))


def test_all_metrics_are_finite_numbers_under_their_known_names(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    (metrics,) = steps(list(build_loop(make_config(beta=0.1), tmp_path).method.step(1)))
    expected = {
        "reward",
        "reward_std",
        "rewards/format/mean",
        "rewards/format/error_rate",
        "frac_reward_zero_std",
        "kl",
        "entropy",
        "clip_ratio/region_mean",
        "completions/mean_length",
        "completions/clipped_ratio",
        "sampling/importance_sampling_ratio/mean",
        "loss",
        "grad_norm",
        "learning_rate",
        "num_tokens",
        "step_time",
        "timing/sample_seconds",
        "timing/score_seconds",
        "timing/train_seconds",
        "perf/sampled_tokens_per_second",
        "perf/trained_tokens_per_second",
        "memory/peak_bytes",
        "policy_version",
        "pass_at_1",
        "pass_at_group",
    }
    assert expected <= set(metrics)
    assert torch.tensor(list(metrics.values())).isfinite().all()
