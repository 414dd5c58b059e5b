"""Tests whether training changed the held-out rewards, by a paired bootstrap over rows.

A row that could not be scored before or after training is left out of both sides.
"""

from collections.abc import Mapping

import numpy as np

from grpo_engine.contract.events import Verdict

RESAMPLES = 10_000
INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled means that bound the 95 % interval."""
SEED = 20_251_121
"""Fixed, so that the same rewards always give the same verdict."""
DRAWS_AT_A_TIME = 100_000
"""Number of draws at a time, which limits memory and keeps the draws in the cache."""


def bootstrap_interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % percentile interval of the mean of `differences` [n], n ≥ 1 (Efron 1979)."""
    generator = np.random.Generator(np.random.Philox(key=SEED))
    num_rows = len(differences)
    rows_at_a_time = max(1, DRAWS_AT_A_TIME // num_rows)
    means = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, rows_at_a_time):
        count = min(rows_at_a_time, RESAMPLES - start)
        drawn = generator.integers(0, num_rows, size=(count, num_rows), dtype=np.int32)
        means[start : start + count] = differences.take(drawn).mean(axis=1)
    low, high = np.percentile(means, INTERVAL)
    return float(low), float(high)


def verdict_on(before: Mapping[str, float], after: Mapping[str, float]) -> Verdict:
    """The change of the mean reward, given rewards by row before and after training.

    As text in the reward's unit, "+0.124 (95% CI 0.081 to 0.169)", with ", not significant" if the interval
    includes 0.
    """
    rows = sorted(before.keys() & after.keys())
    if len(rows) < 2:
        count = "no row was" if not rows else "only 1 row was"
        return Verdict(text=f"unknown, because {count} scored both before and after training", rows=len(rows))
    first = np.array([before[row] for row in rows], dtype=np.float64)
    last = np.array([after[row] for row in rows], dtype=np.float64)
    difference = float((last - first).mean())
    low, high = bootstrap_interval(last - first)
    doubt = ", not significant" if low <= 0 <= high else ""
    text = f"{_shown(difference, '+')} (95% CI {_shown(low)} to {_shown(high)}){doubt}"
    return Verdict(text=text, difference=difference, low=low, high=high, rows=len(rows))


def _shown(value: float, sign: str = "") -> str:
    """Three decimals, or three digits of smaller values."""
    is_small = 0 < abs(value) < 1e-3
    return f"{value + 0.0:{sign}{'.3g' if is_small else '.3f'}}".replace("-", "−")  # + 0.0: never "-0.0"
