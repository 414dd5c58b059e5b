"""Truncated completions, and metrics that do not come from completions."""

import subprocess
import sys

from grpo_engine.contract.records import Episode, FinishReason
from grpo_engine.objective.metrics import completion_metrics
from grpo_engine.objective.types import Completion

LARGE = 2**30
PEAK = """
import torch
from grpo_engine.objective.metrics import peak_memory_bytes
print(peak_memory_bytes(torch.device("cpu")))
"""


def played(failure: str | None) -> Completion:
    """An episode that a limit or a failure ended."""
    episode = Episode(environment="words", seed=1, turns=(), reward=None, failure=failure)
    return Completion("a", (1,), (0.0,), FinishReason.LENGTH, 0, episode=episode)


def test_a_failed_session_is_not_counted_as_a_truncated_completion() -> None:
    completions = [played(None), played("connection closed"), played("connection closed")]
    assert completion_metrics(completions)["completions/clipped_ratio"] == 1 / 3


def test_peak_memory_excludes_the_memory_of_the_process_that_started_this_one() -> None:
    large = b"x" * LARGE
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert len(large) > float(done.stdout) > LARGE / 10
