import subprocess
import sys

import pytest

PROGRAM = """
import torch
from grpo_engine.process.setup import keep_freed_memory

def resident_megabytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024

def left_after_freeing():
    before = resident_megabytes()
    blocks = [torch.ones(2**21) for _ in range(25)]
    del blocks
    return resident_megabytes() - before

print(left_after_freeing())
keep_freed_memory("cpu")
print(left_after_freeing())
"""
MEGABYTES = 25 * 8


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_blocks_stay_for_the_next_operation() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    by_default, kept = map(int, done.stdout.split())
    assert by_default < MEGABYTES / 4 < 0.9 * MEGABYTES < kept
