"""Rows that end, leave and are replaced: bit for bit the completions of one prompt after another."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.rollout.sampler import rows as module
from grpo_engine.rollout.sampler.base import Continuation, Sampling
from grpo_engine.rollout.sampler.decoding import CacheDecoder, Kernels, PlainDecoder, SharedDecoder
from grpo_engine.rollout.sampler.rows import OnRow, Rows
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler

pytestmark = pytest.mark.needs_compiled
PROMPTS = [
    Prompt(row, "", tuple(20 + (row * 5 + i) % 60 for i in range(length)), {})
    for row, length in enumerate((3, 9, 1, 5, 12, 2, 7, 4, 1, 30, 6, 3))
]
SAMPLING = Sampling(max_tokens=13, seed=3, step=2)


class Watched(SharedDecoder):
    """Counts rows that enter and rows that run."""

    def __init__(self, policy: Policy, fails_at: int = 0) -> None:
        assert policy.fast is not None
        super().__init__(policy.model, Kernels(policy.fast))
        self.begun: list[tuple[int, ...]] = []
        self.joined: list[tuple[int, ...]] = []
        self.live: list[int] = []
        self.fails_at = fails_at

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        self.begun += map(tuple, prompts_P)
        return super().start(prompts_P, group_size)

    def join(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        self.joined += map(tuple, prompts_P)
        return super().join(prompts_P, group_size)

    def step(self, tokens_B: Tensor) -> Tensor:
        self.live.append(len(tokens_B))
        if len(self.live) == self.fails_at:
            raise torch.OutOfMemoryError("here")
        return super().step(tokens_B)


def watched(policy: Policy, budget: int, fails_at: int = 0) -> tuple[TorchSampler, list[Watched]]:
    sampler, made = TorchSampler(policy, budget), []

    def make() -> Watched:
        made.append(Watched(policy, 0 if made else fails_at))
        return made[-1]

    sampler._decoder = make
    return sampler, made


def one_by_one(
    policy: Policy, prompts: Sequence[Prompt], group_size: int, sampling: Sampling = SAMPLING
) -> list[Group]:
    """Each prompt in a decoder of its own."""
    groups = []
    for place, prompt in enumerate(prompts):
        sampler, _ = watched(policy, group_size)
        alone = sampling.starting_at(sampling.first_prompt + place)
        if sampling.continuing:
            alone = replace(sampling, continuing=sampling.continuing[place : place + 1])
        groups += sampler.generate([prompt], group_size, alone)
    return groups


def assert_same(found: Sequence[Group], expected: Sequence[Group]) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert left.prompt is right.prompt
        for one, other in zip(left.completions, right.completions, strict=True):
            assert one.token_ids == other.token_ids
            assert one.finish_reason is other.finish_reason
            assert one.text == other.text
            assert one.logprobs == other.logprobs


def test_waiting_prompts_take_the_places_of_those_that_ended(policy: Policy) -> None:
    sampler, made = watched(policy, budget=12)
    found = sampler.generate(PROMPTS, 3, SAMPLING)
    assert_same(found, one_by_one(policy, PROMPTS, 3))
    (decoder,) = made
    assert len(decoder.joined) >= 4
    assert sorted([*decoder.begun, *decoder.joined]) == sorted(prompt.token_ids for prompt in PROMPTS)
    assert max(decoder.live) <= 12
    reasons = {each.finish_reason for group in found for each in group.completions}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=st.integers(1, 40),
    group_size=st.integers(1, 4),
    count=st.integers(1, len(PROMPTS)),
    max_tokens=st.integers(1, 14),
    look_every=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 3),
)
def test_no_budget_and_no_way_of_looking_changes_a_completion(
    policy: Policy, budget: int, group_size: int, count: int, max_tokens: int, look_every: int, seed: int
) -> None:
    sampling = Sampling(max_tokens=max_tokens, seed=seed)
    sampler, made = watched(policy, budget)
    reported: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module.LOOK_EVERY, "cpu", look_every)
        found = sampler.generate(
            PROMPTS[:count], group_size, sampling, lambda place, _: reported.append(place)
        )
    assert_same(found, one_by_one(policy, PROMPTS[:count], group_size, sampling))
    assert sorted(reported) == list(range(count))
    assert max(made[0].live, default=0) <= max(budget, group_size)


def test_rows_that_finish_between_two_checks_are_reported_exactly(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.LOOK_EVERY, "cpu", 8)
    sampler, made = watched(policy, budget=64)
    found = sampler.generate(PROMPTS[:4], 16, SAMPLING)
    assert len(made[0].live) == 15  # the second look, at 16 of 13 tokens
    assert_same(found, one_by_one(policy, PROMPTS[:4], 16))
    lengths = {len(each.token_ids) for group in found for each in group.completions}
    assert {1, 2, 4, 5, 6, 7} <= lengths


@pytest.mark.parametrize("look_every", [1, 8])
def test_greedy_rows_too_are_replaced(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, look_every: int
) -> None:
    monkeypatch.setitem(module.LOOK_EVERY, "cpu", look_every)
    greedy = replace(SAMPLING, temperature=0.0)
    most_likely = [g.completions[0].token_ids for g in one_by_one(policy, PROMPTS, 1, greedy)]
    seldom = sorted({ids[len(ids) // 2] for ids in most_likely})
    policy.stop_set = frozenset(seldom[:4])
    sampler, made = watched(policy, budget=4)
    assert_same(sampler.generate(PROMPTS, 1, greedy), one_by_one(policy, PROMPTS, 1, greedy))
    assert made[0].joined


def test_rows_that_stop_at_a_string_are_replaced(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LOOK_EVERY, "cpu", 8)
    sampling = replace(SAMPLING, stop=("a", "Qz", "7"))
    sampler, made = watched(policy, budget=8)
    found = sampler.generate(PROMPTS, 2, sampling)
    assert_same(found, one_by_one(policy, PROMPTS, 2, sampling))
    assert made[0].joined
    assert any(each.text.endswith(("a", "7")) for group in found for each in group.completions)


@pytest.mark.parametrize("look_every", [1, 8])
def test_every_row_has_its_own_limit(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, look_every: int
) -> None:
    monkeypatch.setitem(module.LOOK_EVERY, "cpu", look_every)
    limits = [1 + 5 * place % 13 for place in range(len(PROMPTS))]
    turns = tuple(Continuation(place, place % 2, 1, limit) for place, limit in enumerate(limits))
    sampling = replace(SAMPLING, continuing=turns)
    sampler, made = watched(policy, budget=5)
    found = sampler.generate(PROMPTS, 1, sampling)
    assert_same(found, one_by_one(policy, PROMPTS, 1, sampling))
    assert made[0].joined
    cut = [
        (len(each.token_ids), limit)
        for group, limit in zip(found, limits, strict=True)
        for each in group.completions
        if each.finish_reason is FinishReason.LENGTH
    ]
    assert len(cut) > 3
    assert all(length == limit for length, limit in cut)


def test_groups_are_reported_in_the_order_they_finish(policy: Policy) -> None:
    reported: list[int] = []
    sampler, _ = watched(policy, budget=12)
    limits = [9, 2, 5, 1]
    turns = tuple(Continuation(place, 0, 1, limit) for place, limit in enumerate(limits))
    policy.stop_set = frozenset({0})
    sampling = replace(SAMPLING, continuing=turns)
    sampler.generate(PROMPTS[:4], 1, sampling, lambda place, _: reported.append(place))
    assert reported == [3, 1, 2, 0]


@pytest.mark.parametrize("fails_at", [1, 6, 20])
def test_out_of_memory_repeats_only_the_rows_that_had_not_ended(policy: Policy, fails_at: int) -> None:
    reported: list[int] = []
    begun: list[set[tuple[int, int]]] = []
    ended: list[set[tuple[int, int]]] = []
    sampler, made = watched(policy, budget=12, fails_at=fails_at)
    rows = sampler.rows

    def remembering(streams: Sequence[tuple[int, int]], sampling: Sampling, on_row: OnRow) -> Rows:
        begun.append(set(streams))
        ended.append(done := set())

        def on_end(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            done.add(streams[row])
            on_row(row, tokens, logprobs, stopped)

        return rows(streams, sampling, on_end)

    sampler.rows = remembering  # type: ignore[method-assign]
    found = sampler.generate(PROMPTS, 3, SAMPLING, lambda place, _: reported.append(place))
    assert_same(found, one_by_one(policy, PROMPTS, 3))
    assert sorted(reported) == list(range(len(PROMPTS)))
    assert bool(ended[0]) == (fails_at > 1)
    assert set().union(*begun[1:]) == begun[0] - ended[0]
    assert sum(map(len, begun[1:])) == len(begun[0] - ended[0])
    assert sampler.sample_budget == 6
    assert max(length for each in made[1:] for length in each.live) <= 6


def test_a_group_that_does_not_fit_raises_an_error(policy: Policy) -> None:
    sampler, _ = watched(policy, budget=3, fails_at=2)
    with pytest.raises(DeviceMemoryError, match="one group does not fit"):
        sampler.generate(PROMPTS, 3, SAMPLING)


def test_the_budget_never_falls_below_one_group(policy: Policy) -> None:
    sampler, made = watched(policy, budget=4, fails_at=2)
    sampler.generate(PROMPTS[:3], 3, SAMPLING)
    assert sampler.sample_budget == 3
    assert max(made[1].live) == 3


@pytest.mark.parametrize("kind", [CacheDecoder, PlainDecoder])
def test_decoders_without_refill_are_looked_at_after_every_token(
    make_policy: Callable[..., Policy],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[CacheDecoder | PlainDecoder],
) -> None:
    """GPT-2 has no position beyond its last one, not even for a row that has ended."""
    monkeypatch.setitem(module.LOOK_EVERY, "cpu", 8)
    policy = make_policy("gpt2")
    assert policy.max_length is not None
    long = Prompt(0, "", (20,) * (policy.max_length - 3), {})
    sampler = TorchSampler(policy, 8)
    sampler._decoder = lambda: kind(policy.model)
    (group,) = sampler.generate([long], 2, Sampling(max_tokens=3))
    assert all(1 <= len(each.token_ids) <= 3 for each in group.completions)
