"""GPUs are counted as CUDA would show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_engine.process.devices import visible_gpus


def test_without_the_variable_the_device_files_count(tmp_path: Path) -> None:
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
def test_the_variable_names_them(tmp_path: Path, value: str, expected: list[str]) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) == expected
