"""A curve drawn as text."""

from collections.abc import Sequence
from itertools import pairwise

EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(values: Sequence[float], *, width: int = 60, height: int = 8) -> str:
    """Columns from 0 to 1, each the mean of its share of `values`, `height` lines high, with an axis."""
    columns = [sum(part) / len(part) for part in _shares(values, min(width, len(values)))]
    lines = []
    for row in reversed(range(height)):
        filled = [round(8 * min(1.0, max(0.0, column * height - row))) for column in columns]
        label = {height - 1: "1.0", 0: "0.0"}.get(row, "")
        lines.append(f"{label:>4} │" + "".join(EIGHTHS[eighths] for eighths in filled))
    lines.append("     └" + "─" * len(columns))
    lines.append(f"      1{f'step {len(values)}':>{max(1, len(columns) - 1)}}")
    return "\n".join(lines)


def _shares(values: Sequence[float], count: int) -> list[Sequence[float]]:
    bounds = [round(index * len(values) / count) for index in range(count + 1)]
    return [values[start:end] for start, end in pairwise(bounds)]
