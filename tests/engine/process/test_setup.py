import subprocess
import sys
from pathlib import Path

import pytest

from grpo_engine.process.setup import visible_gpus

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


def test_without_the_variable_device_files_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["2", "10"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", ["0"]),
        ("3, 1", ["3", "1"]),
        ("GPU-8a3f,MIG-1b2c", ["GPU-8a3f", "MIG-1b2c"]),
        ("", []),
        ("-1", []),
        ("0,-1,2", ["0"]),
    ],
)
def test_the_variable_lists_the_gpus(tmp_path: Path, value: str, expected: list[str]) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) == expected
