"""A probe samples and scores as the job's first steps would, trains nothing, and counts the results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import ProbeSize, RunConfig
from grpo_engine.contract.events import BaseEvent, Probed, RolloutsRecorded, StepFinished, Stopped
from grpo_engine.contract.records import Episode, FinishReason, GradeError, Score
from grpo_engine.objective.types import Completion, Group, Prompt, ScoredGroup
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.run.build import build_loop
from grpo_engine.training.probe import batches, counted

NEVER: Callable[[], bool] = lambda: False  # noqa: E731


def probed(config: RunConfig, prompts: int, folder: Path) -> list[BaseEvent]:
    asked = config.model_copy(update={"probe": ProbeSize(prompts=prompts)})
    return list(build_loop(asked, folder).run(NEVER))


def texts(events: list[BaseEvent], step: int) -> list[str]:
    found = [each for each in events if isinstance(each, RolloutsRecorded) and each.step == step]
    return [one.text for event in found for group in event.groups for one in group.completions]


def test_its_steps_are_those_of_the_training(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = make_config(n_steps=1)
    probe = probed(config, 6, tmp_path / "probe")
    training = list(build_loop(config, tmp_path / "job").run(NEVER))
    assert texts(probe, 1) == texts(training, 1)
    assert len(texts(probe, 1)) == 16
    assert len(texts(probe, 2)) == 8


def test_it_ends_with_its_counts_and_leaves_no_weights(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    *steps, end = probed(make_config(dynamic_sampling=3), 6, tmp_path)
    assert isinstance(end, Probed)
    assert (end.prompts, end.completions) == (6, 24)
    assert end.completion_tokens == sum(
        len(one.token_ids)
        for event in steps
        if isinstance(event, RolloutsRecorded)
        for group in event.groups
        for one in group.completions
    )
    assert [each.step for each in steps if isinstance(each, StepFinished)] == [1, 2]
    assert end.sample_seconds > 0
    assert end.greedy_completions == 6
    assert end.token_surprise_nats is not None
    assert end.token_surprise_nats > 1  # the model is random
    assert not (tmp_path / "checkpoints").exists()


def test_a_file_smaller_than_the_probe_is_taken_whole(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    end = probed(make_config(prompts_per_step=8), 200, tmp_path)[-1]
    assert isinstance(end, Probed)
    assert end.prompts == 12


def test_it_stops_between_two_steps(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    asked = make_config().model_copy(update={"probe": ProbeSize(prompts=8)})
    answers = iter([False, True])
    events = list(build_loop(asked, tmp_path).run(lambda: next(answers)))
    assert isinstance(events[-1], Stopped)
    assert events[-1].step == 1
    assert not any(isinstance(each, Probed) for each in events)


def test_a_grader_that_always_fails_is_counted_and_quoted(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    broken = {"type": "numeric", "reference": "{{item.nothing}}"}
    end = probed(make_config(grader=broken, max_grader_error_rate=0.1), 4, tmp_path)[-1]
    assert isinstance(end, Probed)
    assert (end.grader_errors, end.mean_reward) == (16, None)
    assert "invalid_variable_error" in end.grader_error


def test_failed_sessions_are_counted_apart_from_errors_of_the_grader() -> None:
    episode = Episode(environment="words", seed=1, turns=(), reward=None, failure="connection closed")
    scored = group(None, None, 1.0, finish_reason=FinishReason.LENGTH)
    first, *others = scored.group.completions
    completions = (replace(first, episode=episode), *others)
    unanswered = Score(reward=None, errors={"rollout": GradeError(code="other_error", message="closed")})
    scored = replace(
        scored,
        group=replace(scored.group, completions=completions),
        scores=(unanswered, *scored.scores[1:]),
    )
    found = counted([scored], [], {}, 100)
    assert (found.grader_errors, found.failed_sessions, found.truncated) == (2, 1, 2)
    assert found.session_failure == "connection closed"
    assert found.grader_error == "g: other_error: it broke"


def test_the_first_rows_come_in_steps_and_the_last_one_is_shorter() -> None:
    source = PromptSource([prompt(row) for row in range(10)], 4, seed=1)
    found = batches(source, 6)
    assert [len(each) for each in found] == [4, 2]
    assert [*found[0], *found[1]] == [*source.batch(1), *source.batch(2)][:6]


def prompt(row: int) -> Prompt:
    return Prompt(row=row, text=str(row), token_ids=(1,), item={})


def group(*rewards: float | None, finish_reason: FinishReason = FinishReason.STOP) -> ScoredGroup:
    error = {"g": GradeError(code="other_error", message="it broke")}
    completions = tuple(Completion("x", (5, 6), (-1.0, -1.0), finish_reason, 0) for _ in rewards)
    scores = tuple(Score(reward=each, errors=error if each is None else {}) for each in rewards)
    differ = len({each for each in rewards if each is not None}) > 1
    return ScoredGroup(Group(prompt(0), completions), scores, (0.0,) * len(rewards), differ)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (
            [group(1.0, 0.0), group(1.0, 1.0), group(0.0, 0.0)],
            {"passed": 3, "groups_with_signal": 1, "groups_solved": 1, "mean_reward": 0.5},
        ),
        (
            [group(None, 1.0), group(0.25, 0.5, finish_reason=FinishReason.LENGTH)],
            {"grader_errors": 1, "grader_error": "g: other_error: it broke", "truncated": 2},
        ),
        ([group(None, None)], {"mean_reward": None, "highest_reward": None, "groups_solved": 0}),
        ([group(0.25, 0.5)], {"highest_reward": 0.5, "passed": 0, "completion_tokens": 4}),
        ([group(0.0)], {"greedy_completions": 2, "greedy_passed": 1, "greedy_mean_reward": 0.75}),
    ],
)
def test_counts_of_known_groups(groups: list[ScoredGroup], expected: dict[str, Any]) -> None:
    found = counted(groups, [1.0, 0.5], {"sample": 2.0}, 100).model_dump()
    assert {name: found[name] for name in expected} == expected
