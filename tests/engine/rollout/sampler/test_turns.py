"""Turns that become ready while others are sampled: they join them, and are what each alone would be."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pytest

from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion
from grpo_engine.rollout.sampler.base import Continuation, NextTurn
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.sampler.turns import TurnQueue, sample_in_rounds
from tests.engine.rollout.sampler.test_rows import PROMPTS, SAMPLING, Watched, one_by_one, watched

pytestmark = pytest.mark.needs_compiled
LIMITS = (13, 4, 9, 13, 2, 13, 7, 13, 11, 13, 1, 13)
TURNS = [
    NextTurn(prompt, Continuation(prompt=number, sample=number % 3, turn=1 + number % 2, max_tokens=limit))
    for number, (prompt, limit) in enumerate(zip(PROMPTS, LIMITS, strict=True))
]
AT_FIRST = 4


def queue_of(turns: list[NextTurn]) -> tuple[TurnQueue, Callable[[], None]]:
    """A queue of which some turns are ready; a call makes the next one ready."""
    queue = TurnQueue(most=len(turns), longest=30)
    answers = [[Future[None](), Future[None]()] for _ in turns]
    for turn, own in zip(turns, answers, strict=True):
        queue.put_after(partial(next, iter([turn])), own)
    waiting = iter(answers)

    def answer() -> None:
        for each in next(waiting, ()):
            each.set_result(None)

    for _ in range(AT_FIRST):
        answer()
    return queue, answer


def sample(sampler: TorchSampler, *, in_rounds: bool = False) -> list[Completion]:
    """All turns, of which one more becomes ready whenever one is finished."""
    found: dict[int, Completion] = {}
    queue, answer = queue_of(TURNS)

    def on_turn(turn: NextTurn, completion: Completion) -> None:
        assert turn.continuation.prompt not in found
        found[turn.continuation.prompt] = completion
        answer()

    if in_rounds:
        sample_in_rounds(sampler, queue, SAMPLING, on_turn)
    else:
        sampler.sample_turns(queue, SAMPLING, on_turn)
    return [found[number] for number in range(len(TURNS))]


def alone(policy: Policy) -> list[Completion]:
    continuing = tuple(turn.continuation for turn in TURNS)
    groups = one_by_one(policy, PROMPTS, 1, replace(SAMPLING, continuing=continuing))
    return [group.completions[0] for group in groups]


@pytest.mark.parametrize("budget", [1, 3, 64])
def test_a_turn_that_joins_others_is_the_one_that_is_sampled_alone(policy: Policy, budget: int) -> None:
    sampler, _ = watched(policy, budget)
    assert sample(sampler) == alone(policy) == sample(sampler, in_rounds=True)


def test_turns_that_become_ready_join_the_running_ones(policy: Policy) -> None:
    sampler, made = watched(policy, budget=4)
    sample(sampler)
    assert sum(len(decoder.joined) for decoder in made) >= 4
    entered = [ids for decoder in made for ids in (*decoder.begun, *decoder.joined)]
    assert sorted(entered) == sorted(prompt.token_ids for prompt in PROMPTS)
    assert max(live for decoder in made for live in decoder.live) <= 4


def test_after_memory_ran_out_the_unfinished_turns_are_sampled_with_fewer_at_once(policy: Policy) -> None:
    expected = alone(policy)
    sampler, made = watched(policy, budget=8, fails_at=6)
    assert sample(sampler) == expected
    assert sampler.sample_budget == 4
    assert isinstance(made[1], Watched)


def test_a_conversation_that_ends_instead_of_going_on_leaves_no_turn() -> None:
    queue = TurnQueue(most=2, longest=1)
    ended = Future[None]()
    ended.set_result(None)
    queue.put_after(lambda: None, [ended])
    queue.put_after(lambda: None, [ended, ended])
    assert queue.wait() is None
    assert queue.ready() == []
