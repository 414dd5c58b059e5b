"""Verdicts: the words, the numbers behind them, and which rows they compare."""

import json
import time

import numpy as np
import pytest

from grpo_engine.objective.significance import bootstrap_interval, verdict_on


def rewards(values: list[float]) -> dict[str, float]:
    return {str(row): value for row, value in enumerate(values)}


def shifted(count: int, before: int, after: int) -> tuple[dict[str, float], dict[str, float]]:
    """`before` of the rows pass first, `after` of them later; the first ones each time."""
    return (
        rewards([float(row < before) for row in range(count)]),
        rewards([float(row < after) for row in range(count)]),
    )


def test_a_clear_gain_is_reported_with_its_interval() -> None:
    verdict = verdict_on(*shifted(50, 10, 35))
    assert verdict.text == "+0.500 (95% CI 0.360 to 0.640)"
    assert verdict.difference == pytest.approx(0.5)
    assert (verdict.low, verdict.high, verdict.rows) == (pytest.approx(0.36), pytest.approx(0.64), 50)


def test_a_clear_loss_is_reported_with_negative_numbers() -> None:
    verdict = verdict_on(*shifted(50, 35, 10))
    assert verdict.text == "−0.500 (95% CI −0.640 to −0.360)"
    assert verdict.difference == pytest.approx(-0.5)


def test_an_insignificant_change_is_not_claimed() -> None:
    before, after = rewards([0, 1, 0, 1, 0, 1, 0, 1, 0, 0]), rewards([1, 0, 1, 0, 0, 1, 0, 1, 1, 0])
    verdict = verdict_on(before, after)
    assert verdict.text.startswith("+0.100 (95% CI −")
    assert verdict.text.endswith("), not significant")
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < 0 < verdict.high


def test_no_change_is_not_significant_and_has_no_minus_zero() -> None:
    before, _ = shifted(10, 5, 5)
    assert verdict_on(before, before).text == "+0.000 (95% CI 0.000 to 0.000), not significant"


def test_rewards_beyond_one_are_reported_alike() -> None:
    before, after = rewards([1.0, 2.0, 1.5, 3.0] * 10), rewards([2.0, 3.0, 2.0, 4.0] * 10)
    assert verdict_on(before, after).text == "+0.875 (95% CI 0.800 to 0.938)"


def test_a_row_that_was_not_scored_both_times_is_in_neither_side() -> None:
    before, after = shifted(50, 10, 35)
    verdict = verdict_on({**before, "lost": 1.0}, {**after, "new": 0.0})
    assert verdict == verdict_on(before, after)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {}, "unknown, because no row was scored both before and after training"),
        ({"1": 0.0}, {"2": 1.0}, "unknown, because no row was scored both before and after training"),
        ({"1": 0.0}, {"1": 1.0}, "unknown, because only 1 row was scored both before and after training"),
    ],
)
def test_too_few_rows_show_nothing(before: dict[str, float], after: dict[str, float], text: str) -> None:
    verdict = verdict_on(before, after)
    assert (verdict.text, verdict.difference, verdict.low, verdict.high) == (text, None, None, None)


def test_the_interval_agrees_with_the_normal_one_for_many_rows() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1.0, 4000)
    low, high = bootstrap_interval(differences)
    error = 1.96 * differences.std(ddof=1) / 4000**0.5
    assert low == pytest.approx(differences.mean() - error, abs=2e-3)
    assert high == pytest.approx(differences.mean() + error, abs=2e-3)


def test_the_interval_covers_the_truth_95_percent_of_the_time() -> None:
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        low, high = bootstrap_interval(generator.normal(0.1, 0.5, 60))
        covered += low <= 0.1 <= high
    assert 0.91 <= covered / 300 <= 0.98


def test_the_same_rewards_always_get_the_same_verdict_also_from_json() -> None:
    before, after = shifted(256, 90, 110)
    again = verdict_on(json.loads(json.dumps(before)), dict(reversed(after.items())))
    assert again == verdict_on(before, after)


def test_256_rows_take_a_fraction_of_a_second() -> None:
    before, after = shifted(256, 90, 110)
    verdict_on(before, after)
    seconds = []
    for _ in range(5):
        started = time.process_time()
        verdict_on(before, after)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.3
