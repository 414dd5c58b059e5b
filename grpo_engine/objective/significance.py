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
"""Limits memory, and keeps the draws in the cache."""


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


HELD_OUT = (
    "improved by {amount}, {interval}",
    "worse by {amount}, {interval}",
    "not shown: {signed}, {interval}",
)
RETENTION = (
    "kept: {signed} on {name}, {interval}",
    "lost {amount} on {name}, {interval}",
    "kept: {signed} on {name}, {interval}",
)
"""Texts of a significant gain, of a significant loss, and of no significant change."""


def held_out_verdict(before: Mapping[str, float], after: Mapping[str, float]) -> Verdict:
    """Rewards by row before and after training → "improved by …", "worse by …" or "not shown: …"."""
    return _verdict(before, after, HELD_OUT)


def retention_verdict(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> Verdict:
    """The same for rows of another domain: "kept: …", or "lost … on <name>" if the loss is significant."""
    return _verdict(before, after, RETENTION, name)


def _verdict(
    before: Mapping[str, float], after: Mapping[str, float], texts: tuple[str, str, str], name: str = ""
) -> Verdict:
    rows = sorted(before.keys() & after.keys())
    if len(rows) < 2:
        count = "no row was" if not rows else "only 1 row was"
        return Verdict(text=f"not shown: {count} scored both before and after training", rows=len(rows))
    first = np.array([before[row] for row in rows], dtype=np.float64)
    last = np.array([after[row] for row in rows], dtype=np.float64)
    is_share = min(first.min(), last.min()) >= 0 and max(first.max(), last.max()) <= 1
    difference = float((last - first).mean())
    low, high = bootstrap_interval(last - first)

    def number(value: float, sign: str = "") -> str:
        """In hundredths for rewards between 0 and 1; other rewards keep their own unit."""
        shown = round(value * 100, 1) if is_share else value
        return f"{shown + 0.0:{sign}{'.1f' if is_share else '.3g'}}"  # + 0.0: never "-0.0"

    gain, loss, unclear = texts
    text = gain if low > 0 else loss if high < 0 else unclear
    start, end = (-high, -low) if high < 0 else (low, high)
    unit = "points" if is_share else "reward units"
    text = text.format(
        amount=f"{number(abs(difference))} {unit}",
        signed=f"{number(difference, '+')} {unit}",
        interval=f"95% {number(start)}–{number(end)}",
        name=name,
    )
    return Verdict(text=text, difference=difference, low=low, high=high, rows=len(rows))
