"""A small histogram of rewards as lines of text."""

from collections import Counter
from collections.abc import Iterator, Sequence

BINS = 10
WIDTH = 40
"""Characters of the longest bar."""
Bin = tuple[float, float, int]
"""Lowest and highest value, and number of values."""


def bins_of(values: Sequence[float]) -> list[Bin]:
    """A bin for each value if there are few different ones, otherwise ten of equal width."""
    counts = Counter(values)
    if len(counts) <= BINS:
        return [(value, value, counts[value]) for value in sorted(counts)]
    low, high = min(values), max(values)
    width = (high - low) / BINS
    places = Counter(min(BINS - 1, int((value - low) / width)) for value in values)
    return [(low + n * width, low + (n + 1) * width, places[n]) for n in range(BINS)]


def bars(bins: Sequence[Bin]) -> Iterator[str]:
    """`0.5  ████ 4` for each bin, aligned."""
    labels = [f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}" for low, high, _ in bins]
    width, most = max(map(len, labels), default=0), max((count for *_, count in bins), default=1)
    for label, (*_, count) in zip(labels, bins, strict=True):
        bar = "█" * max(round(WIDTH * count / most), bool(count))
        yield f"{label:>{width}}  {bar} {count}".rstrip()
