"""Advantages against worked values and other engines' numbers, and the traps of equal rewards."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.objective.advantages import GroupRewards, advantages, has_signal

TABLE = json.loads((Path(__file__).parent / "vectors" / "advantages.json").read_text())
OF_REWARDS = ("group_std", "mean_only", "batch_std", "leave_one_out", "reinforce_plus_plus")
"""Estimators that need nothing but one reward a completion."""
EVERY = (*OF_REWARDS, "gdpo", "process")


def group(rewards: Sequence[float | None], lengths: Sequence[int] | None = None) -> GroupRewards:
    """A group as every estimator can read it: one part, one step at the end of each completion."""
    lengths = lengths or [2] * len(rewards)
    return GroupRewards(
        tuple(rewards),
        tuple(lengths),
        parts=tuple({"only": reward} for reward in rewards),
        steps=tuple(() if r is None else ((n, r),) for r, n in zip(rewards, lengths, strict=True)),
    )


def alone(rewards: Sequence[float | None], estimator: str = "group_std", ddof: int = 1) -> list[float]:
    (found,) = advantages([group(rewards)], estimator, ddof=ddof)
    return list(found.values)


def of_table(estimator: str) -> list[float]:
    groups = [
        group(TABLE["rewards"][start : start + 4], TABLE["len"][start : start + 4]) for start in (0, 4, 8)
    ]
    return [value for found in advantages(groups, estimator) for value in found.values]


@pytest.mark.parametrize(
    ("estimator", "engine", "column"),
    [
        ("group_std", "trl group", None),
        ("batch_std", "trl batch", None),
        ("mean_only", "verl", "grpo(no std)"),
        ("leave_one_out", "verl", "rloo"),
    ],
)
def test_an_estimator_agrees_with_the_other_engine(estimator: str, engine: str, column: str | None) -> None:
    expected = TABLE[engine] if column is None else TABLE[engine][column]
    assert of_table(estimator) == pytest.approx(expected, abs=1e-6)


def test_whitening_over_tokens_agrees_with_verl_with_signal_and_is_zero_without() -> None:
    expected = TABLE["verl"]["reinforce_plus_plus_baseline"]
    found = of_table("reinforce_plus_plus")
    assert found[:4] + found[8:] == pytest.approx(expected[:4] + expected[8:], abs=1e-6)
    assert found[4:8] == [0.0] * 4
    assert expected[4] != 0


def test_the_z_score_without_bessels_correction_agrees_with_the_lecture_notes() -> None:
    assert alone([1, 1, 1, 0], ddof=0) == pytest.approx([0.577, 0.577, 0.577, -1.732], abs=1e-3)
    found = alone([1, 0, 1, 0, 1, 1, 0, 1], ddof=0)
    assert sorted({round(value, 2) for value in found}) == [-1.29, 0.77]


def test_mean_only_of_a_graded_group() -> None:
    assert alone([1.0, 0.0, 1.0, 0.5], "mean_only") == [0.375, -0.625, 0.375, -0.125]


def test_leaving_one_out_is_the_reward_less_the_mean_of_the_others() -> None:
    rewards = [0.9, 0.1, 0.4, 0.0]
    others = [statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i in range(4)]
    expected = [reward - other for reward, other in zip(rewards, others, strict=True)]
    assert alone(rewards, "leave_one_out") == pytest.approx(expected, abs=1e-15)


SEVEN_TENTHS = float(np.float32(0.7))


@pytest.mark.parametrize("estimator", EVERY)
@pytest.mark.parametrize("size", [2, 3, 7, 8, 100])
def test_equal_rewards_give_exactly_zero_also_beside_a_group_with_signal(estimator: str, size: int) -> None:
    groups = [group([SEVEN_TENTHS] * size), group([1.0, 0.0, 0.3]), group([0.1 + 0.2] * size)]
    equal, other, also = advantages(groups, estimator)
    assert equal.values == also.values == (0.0,) * size
    assert (equal.has_signal, other.has_signal, also.has_signal) == (False, True, False)
    assert any(other.values)


@pytest.mark.parametrize("estimator", EVERY)
def test_an_unscorable_completion_is_left_out_and_gets_exactly_zero(estimator: str) -> None:
    found = alone([1.0, None, 0.0, 0.25], estimator)
    without = alone([1.0, 0.0, 0.25], estimator)
    assert found[1] == 0.0
    assert [found[0], found[2], found[3]] == without


@pytest.mark.parametrize("estimator", EVERY)
def test_a_single_scored_completion_has_no_signal(estimator: str) -> None:
    for rewards in ([None, None], [None, 0.3, None]):
        assert alone(rewards, estimator) == [0.0] * len(rewards)
        assert not has_signal(group(rewards), estimator)


@pytest.mark.parametrize("estimator", EVERY)
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=16),
    shift=st.integers(-8, 8),
)
def test_a_constant_added_to_the_rewards_changes_nothing(
    estimator: str, rewards: list[float], shift: int
) -> None:
    moved = alone([reward + shift for reward in rewards], estimator)
    assert moved == pytest.approx(alone(rewards, estimator), abs=1e-9)


@pytest.mark.parametrize(
    "estimator", ["group_std", "mean_only", "leave_one_out", "reinforce_plus_plus", "gdpo"]
)
def test_a_constant_added_to_one_group_changes_no_group(estimator: str) -> None:
    left, right = [1.0, 0.0, 0.5], [0.25, 0.5, 1.0]
    before = advantages([group(left), group(right)], estimator)
    after = advantages([group([reward + 4 for reward in left]), group(right)], estimator)
    for one, other in zip(before, after, strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-9)


def test_the_order_of_groups_changes_nothing() -> None:
    groups = [group([1.0, 0.0, 0.5], [1, 5, 2]), group([0.3] * 4), group([0.25, 0.9], [7, 2])]
    for estimator in EVERY:
        forwards = advantages(groups, estimator)
        assert advantages(groups[::-1], estimator)[::-1] == forwards


def test_a_longer_completion_counts_more_in_whitening() -> None:
    """Centred rewards ±½ over 1 and 3 tokens: mean −¼, Bessel's variance ¼ (over the 4 tokens)."""
    (found,) = advantages([group([1.0, 0.0], [1, 3])], "reinforce_plus_plus")
    assert found.values == pytest.approx([0.75 / 0.5, -0.25 / 0.5], abs=1e-6)
    (masked,) = advantages([group([1.0, 0.0, 0.5], [1, 3, 0])], "reinforce_plus_plus")
    assert masked.values[:2] == pytest.approx(found.values, abs=1e-6)


def test_penalties_move_the_advantages_of_a_group_with_signal_only() -> None:
    dull = GroupRewards((0.7,) * 3, (2,) * 3, penalties=(0.1, 0.0, 0.2))
    alive = GroupRewards((1.0, 0.0), (2,) * 2, penalties=(0.5, 0.0))
    found = advantages([dull, alive], "mean_only")
    assert found[0].values == (0.0, 0.0, 0.0)
    assert found[1].values == (0.25, -0.25)


def test_a_penalty_of_a_whole_group_moves_nothing_in_gdpo() -> None:
    parts = ({"a": 1.0}, {"a": 0.0})
    other, *shifted = (GroupRewards((1.0, 0.0), parts=parts, penalties=(p + 0.5, p)) for p in (0.0, 0.0, 8.0))
    plain, penalised = (advantages([other, each], "gdpo")[1].values for each in shifted)
    assert penalised == pytest.approx(plain)


def test_step_rewards_are_standardised_over_all_steps_and_summed_from_the_token_on() -> None:
    """DeepSeekMath §4.1.3 by hand: completions of 4 and 3 tokens, steps (2 tokens, 1) (4, 0) and (3, 1).

    The rewards 1, 0, 1 have mean ⅔ and Bessel's deviation 1/√3, so the steps are worth +1/√3, −2/√3 and
    +1/√3. Tokens 1 and 2 of the first completion take both of its steps, tokens 3 and 4 the last alone.
    """
    rewards = GroupRewards((0.5, 1.0), (4, 3), steps=(((2, 1.0), (4, 0.0)), ((3, 1.0),)))
    (found,) = advantages([rewards], "process")
    third = 1 / math.sqrt(3)
    assert found.has_signal
    assert found.by_token is not None
    assert found.by_token[0] == pytest.approx([-third, -third, -2 * third, -2 * third], abs=1e-3)
    assert found.by_token[1] == pytest.approx([third] * 3, abs=1e-3)
    assert found.values == pytest.approx([-1.5 * third, third], abs=1e-3)


def test_tokens_after_the_last_step_have_no_advantage() -> None:
    rewards = GroupRewards((1.0, 0.0), (4, 1), steps=(((2, 1.0),), ((1, 0.0),)))
    (found,) = advantages([rewards], "process")
    assert found.by_token is not None
    assert found.by_token[0][2:] == (0.0, 0.0)
    assert found.by_token[0][0] > 0 > found.by_token[1][0]


def test_a_penalty_counts_for_every_token_of_a_scored_completion_alone() -> None:
    steps = (((2, 1.0),), ((1, 0.0),), ())
    plain, punished = (
        advantages([GroupRewards((1.0, 0.0, None), (2, 1, 2), steps=steps, penalties=each)], "process")[0]
        for each in ((), (0.25, 0.5, 0.75))
    )
    assert punished.by_token is not None
    assert punished.by_token[2] == (0.0, 0.0)
    lost = [before - after for before, after in zip(plain.values, punished.values, strict=True)]
    assert lost == pytest.approx([0.25, 0.5, 0.0])


def test_one_step_a_completion_is_the_outcome_supervised_z_score() -> None:
    rewards = [1.0, 0.0, 0.25, 0.5]
    assert alone(rewards, "process") == pytest.approx(alone(rewards, "group_std"), abs=1e-12)


def test_equal_step_rewards_have_no_signal_whatever_the_rewards() -> None:
    rewards = GroupRewards((1.0, 0.0), (4, 2), steps=(((2, 0.7), (4, 0.7)), ((2, 0.7),)))
    (found,) = advantages([rewards], "process")
    assert found.values == (0.0, 0.0)
    assert found.by_token == ((0.0,) * 4, (0.0,) * 2)


def parts(*of_each: dict[str, float | None]) -> GroupRewards:
    rewards = tuple(sum(value or 0.0 for value in each.values()) for each in of_each)
    return GroupRewards(rewards, (1,) * len(rewards), parts=of_each)


def test_gdpo_makes_parts_of_very_different_scale_count_the_same() -> None:
    """Each part's z-scores are ±1/√2; they cancel if the parts disagree. By hand, ε left out.

    Sums: √2, 0, 0, −√2 (a group of its own z-scores), with mean 0 and Bessel's deviation √(4/3).
    """
    small_large = [(1.0, 1000.0), (1.0, 0.0), (0.0, 1000.0), (0.0, 0.0)]
    (found,) = advantages([parts(*({"a": a, "b": b} for a, b in small_large))], "gdpo")
    z = 0.5 / math.sqrt(1 / 3)
    spread = math.sqrt((2 * (2 * z) ** 2) / 3)
    assert found.values == pytest.approx([2 * z / spread, 0.0, 0.0, -2 * z / spread], abs=1e-3)


def test_gdpo_weighs_its_parts() -> None:
    rewards = parts({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0})
    (even,) = advantages([rewards], "gdpo")
    (found,) = advantages([rewards], "gdpo", weights={"a": 3.0})
    assert even.values == pytest.approx([0.0, 0.0], abs=1e-12)
    assert found.values == pytest.approx([1 / math.sqrt(2), -1 / math.sqrt(2)], abs=1e-3)


def test_a_part_without_spread_adds_nothing_to_gdpo() -> None:
    with_dull = parts(
        {"a": 1.0, "b": SEVEN_TENTHS}, {"a": 0.0, "b": SEVEN_TENTHS}, {"a": 0.25, "b": SEVEN_TENTHS}
    )
    without = parts({"a": 1.0}, {"a": 0.0}, {"a": 0.25})
    assert advantages([with_dull], "gdpo") == advantages([without], "gdpo")


def test_an_unscorable_part_is_left_out_of_its_own_mean_only() -> None:
    """b is 1, unscorable, 0: z-scores ±1/√2 and nothing; a is 0, 1, 1 with mean ⅔, deviation 1/√3."""
    (found,) = advantages([parts({"a": 0.0, "b": 1.0}, {"a": 1.0, "b": None}, {"a": 1.0, "b": 0.0})], "gdpo")
    half, third = 1 / math.sqrt(2), 1 / math.sqrt(3)
    sums = [-2 * third + half, third, third - half]
    mean, spread = statistics.fmean(sums), statistics.stdev(sums)
    assert found.values == pytest.approx([(each - mean) / spread for each in sums], abs=1e-3)
