"""A step's groups: those without signal are replaced, overlong answers punished, dull prompts rest."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import ReinforcementHyperparameters, RunConfig
from grpo_engine.contract.errors import GraderError, MachineError
from grpo_engine.contract.events import RolloutsRecorded, StepFinished
from grpo_engine.contract.records import OVERLONG, Episode, FinishReason, GradeError, Score
from grpo_engine.graders.rules.endpoint import NO_REWARD
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.rollout.collector import Collector, StepGroups
from grpo_engine.rollout.prompt_source import CurriculumSource, PromptSource
from grpo_engine.rollout.sampler.base import OnGroup, Sampling
from grpo_engine.rollout.scoring import (
    overlong_punishment,
    punished,
    refuse_broken_grader,
    step_ends,
    with_advantages,
)
from tests.engine.injection import InjectedGrading, injected_trainer, random_steps


def completion(reward: float | None, tokens: int = 2) -> Completion:
    return Completion(str(reward), (5,) * tokens, (-1.0,) * tokens, FinishReason.STOP, 0)


class RowSampler:
    """Rows in `alive` give completions that differ; all others are equal. Records its calls."""

    matches_trainer = True

    def __init__(self, alive: set[int], rewards: Sequence[float | None] = (0.0, 1.0)) -> None:
        self.alive = alive
        self.rewards = rewards
        self.asked: list[tuple[list[int], int]] = []

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        self.asked.append(([prompt.row for prompt in prompts_P], sampling.first_prompt))
        groups = [Group(prompt, self._completions(prompt.row)) for prompt in prompts_P]
        for position, group in enumerate(groups):
            if on_group is not None:
                on_group(position, group)
        return groups

    def _completions(self, row: int) -> tuple[Completion, ...]:
        return tuple(completion(r if row in self.alive else 0.7) for r in self.rewards)

    def rest(self) -> dict[str, float]:
        return {}

    def load_policy(self, version: int) -> None:
        """Nothing to load."""


def settings(**fields: Any) -> ReinforcementHyperparameters:
    return ReinforcementHyperparameters.model_validate(
        {"prompts_per_step": 3, "group_size": 2, "max_completion_tokens": 8, **fields}
    )


def collected(sampler: RowSampler, rows: int = 12, step: int = 1, **fields: Any) -> StepGroups:
    prompts = [Prompt(row, "", (1,), {}) for row in range(rows)]
    source = PromptSource(prompts, 3, seed=0)
    collector = Collector(sampler, InjectedGrading(), source, settings(**fields), lambda ids: "x" * len(ids))
    return collector.collect(step, Sampling(max_tokens=8), PhaseTimer())


def rows_of(groups: Sequence[GradedGroup]) -> set[int]:
    return {each.group.prompt.row for each in groups}


def test_without_dynamic_sampling_every_group_stays() -> None:
    found = collected(RowSampler(alive=set()))
    assert len(found.groups) == 3
    assert found.discarded == []


def test_groups_without_signal_are_replaced_by_fresh_prompts_up_to_the_wanted_number() -> None:
    sampler = RowSampler(alive=set(range(0, 12, 2)))
    found = collected(sampler, dynamic_sampling=10)
    assert len(found.groups) == 3
    assert rows_of(found.groups) <= sampler.alive
    assert not rows_of(found.discarded) & sampler.alive
    asked = [row for rows, _ in sampler.asked for row in rows]
    assert len(asked) == len(set(asked))
    assert [first for _, first in sampler.asked] == [
        sum(len(rows) for rows, _ in sampler.asked[:round_]) for round_ in range(len(sampler.asked))
    ]
    assert rows_of([*found.groups, *found.discarded]) == set(asked)


def test_a_step_that_has_a_row_twice_draws_other_numbers_for_fresh_prompts() -> None:
    sampler = RowSampler(alive=set())
    collected(sampler, rows=4, step=2, dynamic_sampling=1)
    (batch, _), (_, first) = sampler.asked
    assert len(set(batch)) < len(batch) == first


def test_resampling_ends_after_its_rounds_and_keeps_the_size_of_the_step() -> None:
    sampler = RowSampler(alive=set())
    found = collected(sampler, dynamic_sampling=2)
    assert len(sampler.asked) == 3
    assert (len(found.groups), len(found.discarded)) == (3, 6)


def test_resampling_ends_without_fresh_prompts() -> None:
    found = collected(RowSampler(alive={0}), rows=5, dynamic_sampling=20)
    assert (len(found.groups), len(found.discarded)) == (3, 2)
    assert 0 in rows_of(found.groups)


def test_discarded_groups_too_count_for_a_broken_grader() -> None:
    sampler = RowSampler(alive=set(range(12)), rewards=(None, None, 0.5))
    with pytest.raises(GraderError, match="could not be scored"):
        collected(sampler, group_size=3, dynamic_sampling=2)


def test_a_lost_sandbox_is_the_machines_fault_and_a_wrong_grader_the_graders() -> None:
    def group(*codes: str) -> GradedGroup:
        errors = [{"python": GradeError(code=code, message="no answer in time")} for code in codes]
        scores = tuple(Score(reward=None, parts={"python": None}, errors=each) for each in errors)
        completions = tuple(completion(None) for _ in codes)
        return GradedGroup(Group(Prompt(0, "", (7,), {}), completions), scores)

    lost, wrong = "python_grader_server_error", "python_grader_runtime_error"
    refuse_broken_grader([group(lost, wrong)], limit=1.0)
    with pytest.raises(MachineError, match="code does not run on this machine now: python: "):
        refuse_broken_grader([group(lost, lost)], limit=0.5)
    with pytest.raises(GraderError, match="2 of 2 completions could not be scored"):
        refuse_broken_grader([group(wrong, wrong)], limit=0.5)


def test_failed_completions_are_not_errors_of_the_grader_but_count_as_completions() -> None:
    error = {"environment": GradeError(code="other_error", message="no reward")}
    scores = tuple(Score(reward=None, parts={}, errors=error) for _ in range(4))
    failed = [replace(completion(None), episode=Episode(environment="e", seed=1, failure="lost"))] * 3
    graded = GradedGroup(Group(Prompt(0, "", (7,), {}), (completion(None), *failed)), scores)
    refuse_broken_grader([graded], limit=0.25)
    with pytest.raises(GraderError, match="1 of 4 completions could not be scored"):
        refuse_broken_grader([graded], limit=0.2)


def test_a_step_with_resampling_records_and_counts_discarded_groups(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    steps = random_steps(1, 4, 4)
    trainer = injected_trainer(make_config(), steps)
    prompts = [Prompt(row, "", (7, 8), {}) for row in range(9)]
    trainer.source = PromptSource(prompts, 4, seed=0)
    hyperparameters = settings(prompts_per_step=4, dynamic_sampling=5)
    trainer.collector = Collector(
        RowSampler(alive={0, 1, 2, 3}),
        InjectedGrading(),
        trainer.source,
        hyperparameters,
        trainer.policy.decode,
    )
    events = list(trainer.step(1))
    (rollouts,) = [event for event in events if isinstance(event, RolloutsRecorded)]
    kept = [group.row for group in rollouts.groups if group.has_signal]
    dropped = [group for group in rollouts.groups if not group.has_signal]
    assert set(kept) == {0, 1, 2, 3}
    assert all(c.advantage == 0.0 for group in dropped for c in group.completions)
    assert isinstance(events[-1], StepFinished)
    assert events[-1].metrics["sampling/discarded_groups"] == len(dropped) > 0


def test_the_overlong_punishment_falls_linearly_over_the_buffer() -> None:
    options = settings(overlong_buffer_tokens=4, overlong_penalty=2.0)
    found = [overlong_punishment(tokens, options) for tokens in (3, 4, 5, 6, 8)]
    assert found == [0.0, 0.0, -0.5, -1.0, -2.0]
    assert overlong_punishment(8, settings()) == 0.0


def test_a_punished_score_names_its_part_and_an_unscorable_one_stays_unscorable() -> None:
    options = settings(overlong_buffer_tokens=4)
    group = Group(Prompt(0, "", (1,), {}), (completion(1.0, tokens=6), completion(None, tokens=8)))
    graded = GradedGroup(group, (Score(reward=1.0, parts={"a": 1.0}), Score(reward=None)))
    long, unscorable = punished(graded, options).scores
    assert (long.reward, long.parts) == (0.5, {"a": 1.0, OVERLONG: -0.5})
    assert unscorable.reward is None
    assert punished(graded, settings()) == graded


def test_an_unscorable_completion_is_left_out_of_the_comparison() -> None:
    graded = GradedGroup(
        Group(Prompt(0, "", (1,), {}), tuple(completion(r) for r in (1.0, None, 0.0))),
        (Score(reward=1.0), Score(reward=None), Score(reward=0.0)),
    )
    (found,) = with_advantages([graded], settings(advantage="mean_only"), lambda ids: "x" * len(ids))
    assert found.advantages == (0.5, 0.0, -0.5)


def test_the_ends_of_steps_are_counted_in_tokens() -> None:
    """Tokens decode to 1, 2, 3, … characters; the first two belong to a tool's answer and its question."""

    def decode(token_ids: Sequence[int]) -> str:
        return "x" * sum(token_ids)

    steps = Score.model_validate(
        {"reward": 1.0, "steps": [{"end": 3, "reward": 1.0}, {"end": 4, "reward": 0.0}]}
    )
    plain = Completion("", (1, 2, 3), (-1.0,) * 3, FinishReason.STOP, 0)
    assert step_ends(plain, steps, decode) == ((2, 1.0), (3, 0.0))
    turns = Completion(
        "", (9, 9, 1, 2, 3), (-1.0,) * 5, FinishReason.STOP, 0, (True, False, True, True, True)
    )
    assert step_ends(turns, steps, decode) == ((3, 1.0), (4, 0.0))
    rows = replace(plain, token_ids=(9, 9, 1, 2, 3), logprobs=(-1.0,) * 5, row_starts=(2,))
    assert step_ends(rows, steps, decode) == ((4, 1.0), (5, 0.0)), "the last row has the newest turn"


def test_a_curriculum_rests_prompts_without_signal_and_counts_them(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = injected_trainer(make_config(curriculum="rest"), random_steps(1, 4, 4))
    assert isinstance(trainer.source, CurriculumSource)
    prompts = [Prompt(row, "", (7, 8), {}) for row in range(4)]
    trainer.source = CurriculumSource(prompts, 4, seed=0)
    trainer.collector = Collector(
        RowSampler(alive={0, 1, 2}), InjectedGrading(), trainer.source, settings(), trainer.policy.decode
    )
    events = list(trainer.step(1))
    assert isinstance(events[-1], StepFinished)
    assert events[-1].metrics["curriculum/resting"] == 1.0
    assert trainer.state.prompts["rows"]["3"][2] == 1
    assert trainer.state.prompts["cursor"] == 4


@pytest.mark.parametrize(
    ("complaint", "advice"),
    [(NO_REWARD, "Let the environment give a reward"), ("no number in the answer", "graders/run")],
)
def test_the_hint_is_about_the_environment_if_that_gave_no_reward(complaint: str, advice: str) -> None:
    errors = {"part": GradeError(code="other_error", message=f"{complaint}: cut")}
    score = Score(reward=None, parts={"part": None}, errors=errors)
    graded = GradedGroup(Group(Prompt(0, "", (7,), {}), (completion(None),)), (score,))
    with pytest.raises(GraderError) as raised:
        refuse_broken_grader([graded], limit=0.5)
    assert advice in raised.value.hint
