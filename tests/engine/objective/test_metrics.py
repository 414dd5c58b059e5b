"""Metrics that do not come from completions."""

import subprocess
import sys

LARGE = 2**30
PEAK = """
import torch
from grpo_engine.objective.metrics import peak_memory_bytes
print(peak_memory_bytes(torch.device("cpu")))
"""


def test_peak_memory_excludes_the_memory_of_the_process_that_started_this_one() -> None:
    large = b"x" * LARGE
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert len(large) > float(done.stdout) > LARGE / 10
