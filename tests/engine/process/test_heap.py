"""What was freed stays in the process for the next operation."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from grpo_engine.process.heap import keep_freed

def resident_megabytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024

if sys.argv[1] == "kept":
    keep_freed("cpu")
before = resident_megabytes()
blocks = [torch.ones(2**21) for _ in range(25)]
del blocks
print(resident_megabytes() - before)
"""
MEGABYTES = 25 * 8


def left_after_freeing(*arguments: str) -> int:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_blocks_stay_for_the_next_operation() -> None:
    assert left_after_freeing("left alone") < MEGABYTES / 4 < 0.9 * MEGABYTES < left_after_freeing("kept")
