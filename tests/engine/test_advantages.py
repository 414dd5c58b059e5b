"""Advantages against worked values, and the traps of equal rewards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.advantages import group_advantages, group_std, has_signal

TABLE = json.loads((Path(__file__).parent / "vectors" / "advantages.json").read_text())


def by_group(estimator: str) -> list[float]:
    found: list[float] = []
    for start in range(0, 12, 4):
        found += group_advantages(TABLE["rewards"][start : start + 4], estimator)
    return found


def test_group_std_agrees_with_trl() -> None:
    assert by_group("group_std") == pytest.approx(TABLE["trl group"], abs=1e-6)


def test_mean_only_agrees_with_verl() -> None:
    assert by_group("mean_only") == pytest.approx(TABLE["verl"]["grpo(no std)"], abs=1e-6)


def test_the_textbook_z_score_of_three_right_and_one_wrong() -> None:
    rewards = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    assert group_std(rewards, ddof=0).tolist() == pytest.approx([0.577, 0.577, 0.577, -1.732], abs=1e-3)


def test_the_textbook_z_score_of_five_right_and_three_wrong() -> None:
    found = group_advantages([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0], ddof=0)
    assert sorted({round(value, 3) for value in found}) == [-1.291, 0.774]


def test_mean_only_of_a_graded_group() -> None:
    assert group_advantages([1.0, 0.0, 1.0, 0.5], "mean_only") == [0.375, -0.625, 0.375, -0.125]


@pytest.mark.parametrize("estimator", ["group_std", "mean_only"])
def test_eight_equal_rewards_give_exactly_zero(estimator: str) -> None:
    assert group_advantages([0.7] * 8, estimator) == [0.0] * 8
    assert not has_signal([0.7] * 8)


def test_an_unscorable_completion_is_left_out_and_gets_exactly_zero() -> None:
    assert group_advantages([1.0, None, 0.0], "mean_only") == [0.5, 0.0, -0.5]


def test_a_group_of_unscorable_completions_has_no_signal() -> None:
    assert not has_signal([None, None])
    assert group_advantages([None, None]) == [0.0, 0.0]


def test_one_scored_completion_has_nobody_to_be_compared_with() -> None:
    assert group_advantages([None, 0.3, None]) == [0.0, 0.0, 0.0]


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=16), st.integers(-8, 8))
def test_a_constant_added_to_a_groups_rewards_changes_nothing(rewards: list[float], shift: int) -> None:
    moved = group_advantages([reward + shift for reward in rewards])
    assert moved == pytest.approx(group_advantages(list(rewards)), abs=1e-9)
