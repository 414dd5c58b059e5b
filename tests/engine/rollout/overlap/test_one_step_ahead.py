"""Sampling a step ahead: which weights sampled each step; nothing depends on threads or on kills."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_engine.config.job import ReinforcementHyperparameters, RunConfig
from grpo_engine.contract.errors import ConfigError, GraderError
from grpo_engine.contract.events import BaseEvent, RolloutsRecorded, StepFinished
from grpo_engine.contract.records import FinishReason, GradeError, Score
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.collector import Collector, StepGroups, sampling_of
from grpo_engine.rollout.overlap import one_step_ahead
from grpo_engine.rollout.overlap.one_step_ahead import OneStepAhead
from grpo_engine.rollout.overlap.own_stream import OwnStream
from grpo_engine.rollout.overlap.policy_snapshot import sampler_for
from grpo_engine.rollout.prompt_source import CurriculumSource, PromptOutcome
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.run.build import build_loop
from grpo_engine.training.trainer import Trainer
from tests.engine.conftest import largest_difference, parameters_of, trained
from tests.engine.injection import CPU
from tests.engine.processes import adapter_sha256, crash_here, metric_lines, run_here
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler

MakeConfig = Callable[..., RunConfig]


def trainer_of(config: RunConfig, run_dir: Path) -> Trainer:
    made = build_loop(config, run_dir).method
    assert isinstance(made, Trainer)
    return made


def steps(events: list[BaseEvent]) -> list[dict[str, float]]:
    return [event.metrics for event in events if isinstance(event, StepFinished)]


def rollouts(events: list[BaseEvent]) -> dict[int, list[tuple[int, tuple[int, ...]]]]:
    """Step → (policy version, tokens) of every completion."""
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for event in events:
        if isinstance(event, RolloutsRecorded):
            made = [(c.policy_version, c.token_ids) for group in event.groups for c in group.completions]
            found.setdefault(event.step, []).extend(made)
    return found


def sampled_now(trainer: Trainer, step: int) -> list[tuple[int, tuple[int, ...]]]:
    """A step's completions, sampled with the trainer's current policy."""
    source = trainer.source
    assert isinstance(source, one_step_ahead.PromptSource)
    trainer.sampler.load_policy(trainer.state.policy_version)
    size = trainer.hyperparameters.group_size
    sampling = sampling_of(trainer.hyperparameters, trainer.seed, step)
    groups = trainer.sampler.generate(source.batch(step), size, sampling)
    return [(c.policy_version, c.token_ids) for group in groups for c in group.completions]


@pytest.mark.parametrize("lora", [{"rank": 4}, "full"])
def test_a_step_is_sampled_by_the_policy_before_the_step_before_it(
    make_config: MakeConfig, tmp_path: Path, lora: Any
) -> None:
    options = {"n_steps": 4, "learning_rate": 1e-2, "lora": lora, "beta": 0.0}
    config = make_config(max_staleness=1, **options)
    events = list(build_loop(config, tmp_path / "ahead").run(lambda: False))
    found = rollouts(events)
    assert [{version for version, _ in found[step]} for step in (1, 2, 3, 4)] == [{0}, {0}, {1}, {2}]
    assert [each["sampling/staleness"] for each in steps(events)] == [0, 1, 1, 1]
    # the first step is on-policy, so up to its end another trainer without the option is the same
    plain = trainer_of(make_config(**options), tmp_path / "plain")
    expected = {step: sampled_now(plain, step) for step in (1, 2)}
    list(plain.step(1))
    expected[3] = sampled_now(plain, 3)
    assert {step: found[step] for step in (1, 2, 3)} == expected


def test_without_staleness_collector_and_source_are_the_plain_ones(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = trainer_of(make_config(), tmp_path)
    assert type(trainer.collector) is Collector
    assert trainer.collector.source is trainer.source
    assert trainer.collector.sampler is trainer.sampler


@pytest.fixture
def trained_first() -> Iterator[threading.Event]:
    """Set when a step's training is over; a background thread that waits for it is let go at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_whether_training_or_sampling_ends_first_changes_nothing(
    make_config: MakeConfig, tmp_path: Path, trained_first: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(max_staleness=1, n_steps=4, learning_rate=1e-2)
    first_loop = build_loop(config, tmp_path / "a")
    sampling_first = first_loop.method
    update = sampling_first._update

    def after_sampling(step: int, *rest: Any) -> dict[str, float]:
        collector = sampling_first.collector
        assert isinstance(collector, OneStepAhead)
        if collector._next is not None:
            collector._next.result()
        return update(step, *rest)

    monkeypatch.setattr(sampling_first, "_update", after_sampling)
    list(first_loop.run(lambda: False))
    second_loop = build_loop(config, tmp_path / "b")
    training_first = second_loop.method
    collect, train = OneStepAhead._collect, training_first._update

    def after_training(self: OneStepAhead, step: int, sampling: Sampling) -> Any:
        if step > 1:
            assert trained_first.wait(60)
            trained_first.clear()
        return collect(self, step, sampling)

    def then_let_go(step: int, *rest: Any) -> dict[str, float]:
        found = train(step, *rest)
        trained_first.set()
        return found

    monkeypatch.setattr(OneStepAhead, "_collect", after_training)
    monkeypatch.setattr(training_first, "_update", then_let_go)
    list(second_loop.run(lambda: False))
    assert largest_difference(parameters_of(sampling_first), parameters_of(training_first)) == 0.0


@pytest.mark.slow
def test_a_run_that_ends_suddenly_at_step_7_equals_an_undisturbed_one(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    options = {"curriculum": "rest", "dynamic_sampling": 1, "beta": 0.05, "learning_rate": 1e-2}
    job = make_config(max_staleness=1, n_steps=12, checkpoint_interval=3, **options)
    run_here(job, tmp_path / "whole")
    crash_here(job, tmp_path / "broken", 7)
    run_here(job, tmp_path / "broken")
    assert metric_lines(tmp_path / "broken") == metric_lines(tmp_path / "whole")
    assert adapter_sha256(tmp_path / "broken", 12) == adapter_sha256(tmp_path / "whole", 12)


def test_a_checkpoint_without_the_waiting_rollouts_would_continue_differently(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(max_staleness=1, n_steps=4, learning_rate=1e-2)
    whole = trained(config, tmp_path / "whole")
    found = {}
    for name in ("exact", "forgetful"):
        stopped = build_loop(config, tmp_path / name)
        list(stopped.run(lambda stopped=stopped: stopped.state.step == 2))  # type: ignore[misc]
        resumed = build_loop(config, tmp_path / name)
        if name == "forgetful":
            source = resumed.method.source
            source.load = lambda state, load=source.load: load({})
        list(resumed.run(lambda: False))
        found[name] = largest_difference(parameters_of(whole), parameters_of(resumed.method))
    assert found["exact"] == 0.0
    assert found["forgetful"] > 1e-5


@pytest.mark.slow
def test_the_reward_rises_one_step_behind(make_config: MakeConfig, tmp_path: Path) -> None:
    options = {"group_size": 8, "prompts_per_step": 8, "learning_rate": 3e-3, "lora": "full", "beta": 0.0}
    config = make_config(max_staleness=1, n_steps=25, **options)
    rewards = [m["reward"] for m in steps(list(build_loop(config, tmp_path).run(lambda: False)))]
    assert sum(rewards[:5]) / 5 < 0.75
    assert sum(rewards[-5:]) / 5 > 0.95


def test_the_ratio_is_taken_to_the_policy_that_sampled(make_config: MakeConfig, tmp_path: Path) -> None:
    """A learning rate at which one step leaves the clip range: on-policy no token is ever clipped."""
    clipped = {}
    for staleness in (0, 1):
        config = make_config(max_staleness=staleness, n_steps=3, learning_rate=3e-2, beta=0.0)
        events = list(build_loop(config, tmp_path / str(staleness)).run(lambda: False))
        clipped[staleness] = [each["clip_ratio/region_mean"] for each in steps(events)]
    assert clipped[0] == [0.0, 0.0, 0.0]
    assert clipped[1][0] == 0.0
    assert clipped[1][1] > 0
    assert clipped[1][2] > 0


def test_a_sampler_that_sleeps_while_the_policy_is_trained_is_refused(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    with pytest.raises(ConfigError, match="max_staleness is 1, but the sampler scripted cannot sample"):
        sampler_for(ScriptedSampler(policy, lambda stream: "1"), policy)


def test_several_ranks_are_refused(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "current", classmethod(lambda cls: cls(0, 2)))
    with pytest.raises(ConfigError, match="max_staleness is 1, but 2 ranks"):
        build_loop(make_config(max_staleness=1), tmp_path)


def test_a_loss_without_a_ratio_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_staleness needs a loss with a ratio"):
        ReinforcementHyperparameters.model_validate({"max_staleness": 1, "recipe": "rloo"})


def test_a_job_with_tools_samples_ahead(make_config: MakeConfig, tmp_path: Path) -> None:
    data = make_config(max_staleness=1, n_steps=2).model_dump(mode="json")
    data["method"]["reinforcement"]["tools"] = [{"type": "http", "name": "add", "url": "https://add.example"}]
    events = list(build_loop(RunConfig.model_validate(data), tmp_path).run(lambda: False))
    assert {version for version, _ in rollouts(events)[2]} == {0}


def test_an_error_ahead_is_raised_in_its_own_step(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trainer_of(make_config(max_staleness=1), tmp_path)
    collector = trainer.collector
    assert isinstance(collector, OneStepAhead)
    submit = trainer.grading.submit
    graded = [0]

    def failing(*arguments: Any) -> Any:
        graded[0] += 1
        future = submit(*arguments)
        if graded[0] > 16:
            future = type(future)()
            error = GradeError(code="other_error", message="down")
            future.set_result(Score(reward=None, errors={"digits": error}))
        return future

    collector.collector.grading.submit = failing  # type: ignore[method-assign]
    first = list(trainer.step(1))
    assert isinstance(first[-1], StepFinished)
    assert trainer.state.prompts["next"] is None
    with pytest.raises(GraderError, match="16 of 16"):
        list(trainer.step(2))


def completion(**fields: Any) -> Completion:
    base = Completion("a", (3, 5), (-0.1, -2.0 / 3), FinishReason.LENGTH, 4)
    return replace(base, **fields)


class _RowsOnly:
    """Replaces a collector: the rows it drew, as groups whose rewards differ for even rows."""

    def __init__(self, source: CurriculumSource) -> None:
        self.source = source
        self.drawn: list[list[int]] = []

    def collect(self, step: int, sampling: Sampling, timer: PhaseTimer) -> StepGroups:
        prompts = self.source.batch(step)
        self.drawn.append([prompt.row for prompt in prompts])
        groups = [GradedGroup(Group(prompt, (completion(),)), (Score(reward=1.0),)) for prompt in prompts]
        return StepGroups(groups, [])


class _NoSnapshot:
    stream = OwnStream(CPU)

    def update(self, version: int) -> None:
        """Nothing to copy."""


def test_a_curriculum_gets_every_outcome_one_step_later_and_leaves_no_row_out() -> None:
    prompts = [Prompt(row, "", (1,), {}) for row in range(6)]
    sources = [CurriculumSource(prompts, 2, seed=3) for _ in range(2)]
    rows = _RowsOnly(sources[0])
    snapshot: Any = _NoSnapshot()
    made: Any = rows
    looking = OneStepAhead(snapshot, made, sources[1], total_steps=7, version=lambda: 4)
    for step in range(1, 8):
        found = looking.collect(step, Sampling(max_tokens=1), PhaseTimer())
        drawn = [graded.group.prompt.row for graded in found.groups]
        assert drawn == rows.drawn[step - 1]
        looking.observe({row: PromptOutcome(has_signal=row != 0, pass_rate=1.0) for row in drawn})
        looking.load(looking.state)  # as after a resume
    drawn_in_order = [row for drawn in rows.drawn for row in drawn]
    assert sorted(drawn_in_order[:6]) == [0, 1, 2, 3, 4, 5]
    assert sorted(drawn_in_order[6:11]) == [1, 2, 3, 4, 5]  # row 0 rests for an epoch
    visits = {row: each.visits for row, each in looking.known.difficulty.items()}  # type: ignore[attr-defined]
    assert visits == Counter(drawn_in_order)
