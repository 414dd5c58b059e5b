"""What a step's completions did with their tools."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from grpo_engine.objective.types import Completion


def tool_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Calls and turns of a completion, and the share of calls that failed (absent where none was made)."""
    calls = [call for completion in completions for call in completion.tool_calls]
    metrics = {
        "tools/calls_mean": len(calls) / max(1, len(completions)),
        "tools/turns_mean": statistics.fmean(each.turns for each in completions),
    }
    if calls:
        metrics["tools/error_rate"] = sum(bool(call["error"]) for call in calls) / len(calls)
    return metrics
